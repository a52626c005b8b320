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
}
export default function () {}
