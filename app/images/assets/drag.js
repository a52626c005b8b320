/* The function is called for each new picture and reuses the host element. */
export default function ({ data, parentElement, setStateValue }) {
  let host = parentElement.querySelector('.lk-drag');
  if (!host) {
    host = document.createElement('div');
    host.className = 'lk-drag';
    host.appendChild(document.createElement('img'));
    const part = document.createElement('div');
    part.className = 'lk-part';
    host.appendChild(part);
    parentElement.appendChild(host);
  }
  const image = host.querySelector('img'), part = host.querySelector('.lk-part');
  host.dataset.width = data.width;
  host.dataset.height = data.height;
  image.alt = data.label;
  if (image.src !== data.source) image.src = data.source;
  image.style.imageRendering = Math.max(data.width, data.height) > data.small ? 'auto' : 'pixelated';
  const place = ({ left, top, width, height }) => {
    part.style.display = width > 0 && height > 0 ? 'block' : 'none';
    part.style.left = 100 * left / data.width + '%';
    part.style.top = 100 * top / data.height + '%';
    part.style.width = 100 * width / data.width + '%';
    part.style.height = 100 * height / data.height + '%';
  };
  if (!host.start) place(data.part);
  const at = (event) => {
    const box = host.getBoundingClientRect();
    const limited = (value, size) => Math.min(size - 1, Math.max(0, Math.floor(value)));
    return [limited((event.clientX - box.left) / box.width * data.width, data.width),
            limited((event.clientY - box.top) / box.height * data.height, data.height)];
  };
  const between = ([x, y], [u, v]) => ({
    left: Math.min(x, u), top: Math.min(y, v), width: Math.abs(x - u) + 1, height: Math.abs(y - v) + 1 });
  host.onpointerdown = (event) => {
    host.start = at(event);
    host.setPointerCapture(event.pointerId);
    event.preventDefault();
  };
  host.onpointermove = (event) => { if (host.start) place(between(host.start, at(event))); };
  host.onpointerup = (event) => {
    if (!host.start) return;
    const drawn = between(host.start, at(event));
    host.start = null;
    setStateValue('drawn', { ...drawn, time: Date.now() });
  };
  host.onpointercancel = () => { host.start = null; place(data.part); };
}
