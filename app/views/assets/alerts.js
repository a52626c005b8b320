/* The list of alerts, newest first, and the button that turns the browser's notifications on and off (app/alerts.py).
   They are asked for by a click alone, and only what comes while the page is open is notified. */
const KEPT = 'labkit-notifications'; // in the browser's storage: whether they are on
let newest = null; // when the last alert was told that this page has seen; the module stays loaded

const make = (parent, tag, name, text) => {
  const made = document.createElement(tag);
  if (name) made.className = name;
  if (text !== undefined) made.textContent = text;
  parent?.append(made);
  return made;
};

function isOn() {
  try {
    return Notification.permission === 'granted' && localStorage.getItem(KEPT) === 'on';
  } catch { // a browser without notifications, or one that keeps nothing
    return false;
  }
}

function notify(told) {
  for (const { text, href } of told) {
    const note = new Notification('labkit', { body: text, tag: text }); // one, however many pages are open
    note.onclick = () => { window.focus(); location.href = href; };
  }
}

export default function ({ data: bytes, parentElement }) {
  const told = JSON.parse(new TextDecoder().decode(bytes));
  let host = parentElement.querySelector('.lk-alerts');
  if (!host) {
    host = make(parentElement, 'div', 'lk-alerts');
    const head = make(host, 'div', 'lk-alerts-head');
    make(head, 'strong', '', 'Alerts');
    host.button = make(head, 'button', '', '');
    host.button.type = 'button';
    host.said = make(host, 'p', 'lk-alerts-said', '');
    host.said.setAttribute('role', 'status');
    host.list = make(host, 'ol');
    host.list.setAttribute('aria-label', 'Alerts, newest first');
    host.list.tabIndex = 0;
  }
  const possible = 'Notification' in window && isSecureContext;
  const show = () => {
    host.button.textContent = isOn() ? 'Notifications on' : 'Notify me';
    host.button.setAttribute('aria-pressed', isOn());
    host.button.disabled = !possible;
    if (!possible) host.said.textContent = 'The browser notifies over https or on localhost only.';
  };
  host.button.onclick = async () => {
    const wanted = !isOn();
    const answer = wanted ? await Notification.requestPermission() : '';
    try { localStorage.setItem(KEPT, wanted ? 'on' : 'off'); } catch { /* a browser that keeps nothing */ }
    host.said.textContent = wanted && answer !== 'granted' ? 'The browser doesn\u2019t allow notifications of this page.' : '';
    show();
  };
  show();
  const drawn = JSON.stringify(told);
  if (host.drawn !== drawn) {
    host.drawn = drawn;
    host.list.replaceChildren();
    for (const { text, at, href } of told) {
      const line = make(host.list, 'li');
      make(line, 'a', '', text).href = href;
      make(line, 'time', '', ` ${new Date(at * 1000).toLocaleTimeString()}`);
    }
    host.list.hidden = !told.length;
  }
  if (newest !== null && isOn()) notify(told.filter(({ at }) => at > newest));
  newest = Math.max(newest ?? 0, told[0]?.at ?? 0);
}
