/* Another token than the last one scrolls to the anchor, unless the reader scrolls first. */
export default function ({ data, parentElement }) {
  parentElement.style.scrollMarginTop = '4rem';
  if (globalThis.labkitScrolledFor === data.token) return;
  globalThis.labkitScrolledFor = data.token;
  let left = false;
  const leave = () => { left = true; };
  for (const kind of ['wheel', 'touchstart', 'keydown', 'pointerdown'])
    addEventListener(kind, leave, { once: true });
  const calm = matchMedia('(prefers-reduced-motion: reduce)').matches;
  const scroll = () => {
    if (left || !parentElement.isConnected) return;
    parentElement.scrollIntoView({ block: 'start', behavior: calm ? 'auto' : 'smooth' });
  };
  for (const wait of [120, 700, 1500, 3000]) setTimeout(scroll, wait); // other parts may still come
  parentElement.tabIndex = -1;
  parentElement.style.outline = 'none';
  parentElement.setAttribute('aria-label', data.label);
  parentElement.focus({ preventScroll: true });
}
