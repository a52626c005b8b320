// One step of the Back button for each click or key. Streamlit makes several of a click that leads to another
// page: the address of the page that is left gets the next one's parameters first, which would be the table of
// runs without its filter, and the new page completes its own address.
if (!globalThis.labkitHistory) {
  globalThis.labkitHistory = true;
  const [push, replace] = [history.pushState.bind(history), history.replaceState.bind(history)];
  let acted = false; // since the last step
  for (const kind of ['pointerdown', 'keydown']) addEventListener(kind, () => { acted = true; }, true);
  history.pushState = (...step) => {
    (acted ? push : replace)(...step);
    acted = false;
  };
  // A first address that was completed before this script was there has made a step, too, which Back skips.
  const [{ name: first }] = performance.getEntriesByType('navigation');
  if (location.href !== first) addEventListener('popstate', () => { if (location.href === first) history.back(); });
  // Where the server has ended, Streamlit asks whether one is connected to the internet.
  const own = ['localhost', '127.0.0.1', '[::1]'].includes(location.hostname);
  const how = own ? `in a shell with: labkit dashboard --port ${location.port}` : 'where it ran';
  const words = `The dashboard's server has ended, or can't be reached. Trainings go on without it. Start it again ${how}. `
    + 'This page then comes back by itself.';
  const replaceWords = () => {
    for (const part of document.querySelectorAll('[role="dialog"] :not(:has(*))'))
      if (part.textContent.includes('Are you connected to the internet?')) part.textContent = words;
  };
  new MutationObserver(() => { for (const wait of [0, 200, 1000]) setTimeout(replaceWords, wait); })
    .observe(document.body, { childList: true });
  // The button beside a command copies it: also where the browser has no clipboard, as without https.
  addEventListener('click', ({ target: button }) => {
    if (!button.matches('.lk-copy')) return;
    getSelection().selectAllChildren(button.previousElementSibling);
    if (document.execCommand('copy')) button.textContent = 'Copied';
    setTimeout(() => { button.textContent = 'Copy'; }, 2000);
  });
}
export default function () {}
