/* The head of the drawer. Another token than the last one scrolls to it, unless the reader scrolls first. Beside charts in
   sight, the focus stays where it is, and comes here when the same is asked for again. Arrow keys press the drawer's
   buttons: in it, on another button of the page, or where nothing has the focus. */
export default function ({ data, parentElement }) {
  parentElement.style.scrollMarginTop = '4rem';
  parentElement.tabIndex = -1;
  parentElement.style.outline = 'none';
  parentElement.setAttribute('aria-label', data.label);
  const drawer = parentElement.closest('.st-key-live-drawer');
  const press = (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return; // Back, for one
    if (!drawer.contains(event.target) && !event.target.matches('body, .stButton button')) return;
    if (event.key.toLowerCase() === 'j' && !event.target.matches('input')) globalThis.labkitBoard.nextJump();
    const name = { ArrowLeft: 'Previous', ArrowRight: 'Next', Escape: 'close' }[event.key];
    const button = name && !event.target.matches('input') && drawer.querySelector(`.st-key-batch-${name} button`);
    if (!button) return;
    event.preventDefault();
    if (name === 'close') document.querySelector('.lk-chart')?.focus();
    button.click();
  };
  document.addEventListener('keydown', press);
  const { token, label } = globalThis.labkitScrolledFor ?? {};
  globalThis.labkitScrolledFor = data;
  if (token !== data.token) {
    const isSeen = parentElement.getBoundingClientRect().top < innerHeight - 200; // a log may stand above the charts
    const beside = getComputedStyle(drawer).position === 'sticky' && isSeen;
    if (!beside) scrollTo(parentElement);
    if (!beside || label === data.label) parentElement.focus({ preventScroll: true });
  }
  return () => document.removeEventListener('keydown', press);
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
