/* Markup with SVG on a page (app/markup.py). */
export default function ({ data, parentElement }) {
  let host = parentElement.querySelector('.lk-drawing');
  if (!host) {
    host = document.createElement('div');
    host.className = 'lk-drawing';
    parentElement.appendChild(host);
  }
  if (host.markup !== data.markup) host.innerHTML = host.markup = data.markup;
}
