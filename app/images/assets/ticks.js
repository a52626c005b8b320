// Cards with boxes to tick, and buttons that say something of the ticked ones (app/images/marking.py). What is
// ticked is known here only, until a button is pressed.
export default function ({ data, parentElement, setTriggerValue }) {
  let host = parentElement.querySelector('.lk-ticks');
  if (!host) {
    host = document.createElement('div');
    host.className = 'lk-ticks';
    parentElement.appendChild(host);
  }
  if (host.markup !== data.markup) host.innerHTML = host.markup = data.markup;
  const boxes = () => [...host.querySelectorAll('input[type=checkbox]')];
  const count = () => {
    const ticked = boxes().filter((box) => box.checked).length;
    host.querySelector('.lk-ticked').textContent = `${ticked} ticked`;
    for (const button of host.querySelectorAll('button[data-kind]')) button.disabled = !ticked;
  };
  host.onchange = count;
  host.onclick = (event) => {
    const button = event.target.closest('button');
    if (!button) return;
    const ticked = boxes().filter((box) => box.checked);
    if (button.dataset.kind) {
      const places = ticked.map((box) => box.value);
      setTriggerValue('said', { kind: button.dataset.kind, label: host.querySelector('select').value, places });
    }
    const all = !button.dataset.kind && ticked.length < boxes().length;
    for (const box of boxes()) box.checked = all;
    count();
  };
  count();
}
