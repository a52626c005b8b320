/* The head of the drawer. Another token than the last one scrolls to it, unless the reader scrolls first. Beside the charts,
   it is in sight: the focus stays where it is, and comes here when the same is asked for again. Arrow keys in the drawer
   press its buttons. */
export default function ({ data, parentElement }) {
  parentElement.style.scrollMarginTop = '4rem';
  parentElement.tabIndex = -1;
  parentElement.style.outline = 'none';
  parentElement.setAttribute('aria-label', data.label);
  const drawer = parentElement.closest('.st-key-live-drawer');
  const press = (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return; // Back, for one
    if (event.key.toLowerCase() === 'j' && !event.target.matches('input')) globalThis.labkitBoard.nextJump();
    const name = { ArrowLeft: 'Previous', ArrowRight: 'Next', Escape: 'close' }[event.key];
    const button = name && !event.target.matches('input') && drawer.querySelector(`.st-key-batch-${name} button`);
    if (!button) return;
    event.preventDefault();
    if (name === 'close') document.querySelector('.lk-chart')?.focus();
    button.click();
  };
  drawer.addEventListener('keydown', press);
  const { token, label } = globalThis.labkitScrolledFor ?? {};
  globalThis.labkitScrolledFor = data;
  if (token !== data.token) {
    const beside = getComputedStyle(drawer).position === 'sticky';
    if (!beside) scrollTo(parentElement);
    if (!beside || label === data.label) parentElement.focus({ preventScroll: true });
  }
  return () => drawer.removeEventListener('keydown', press);
}

function scrollTo(place) {
  let left = false;
  const leave = () => { left = true; };
  for (const kind of ['wheel', 'touchstart', 'keydown', 'pointerdown'])
    addEventListener(kind, leave, { once: true });
  const calm = matchMedia('(prefers-reduced-motion: reduce)').matches;
  const scroll = () => {
    if (!left && place.isConnected) place.scrollIntoView({ block: 'start', behavior: calm ? 'auto' : 'smooth' });
  };
  for (const wait of [120, 700, 1500, 3000]) setTimeout(scroll, wait); // other parts may still come
}
