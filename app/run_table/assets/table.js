// A table whose rows have boxes to tick, names that may be links, and headers that sort. Called for each new
// content. Rows are known by their keys: a tick, the focus and what is open stay with them, whatever comes.
// Names and values are set as text only: they may hold anything.
// Rows are grids of their own, so that those out of sight are laid out only once they come into sight; the roles
// are written down because a grid is no row of a table to each browser.
const open = new Set(); // the groups whose runs are shown; the module stays loaded, so Back finds them open

const ROLES = { table: 'table', thead: 'rowgroup', tbody: 'rowgroup', tr: 'row', td: 'cell' };
const make = (parent, tag, name, text) => {
  const made = document.createElement(tag);
  if (name) made.className = name;
  if (text !== undefined) made.textContent = text;
  if (ROLES[tag]) made.setAttribute('role', ROLES[tag]);
  parent?.append(made);
  return made;
};

const UNITS = [[31557600, 'year'], [2629800, 'month'], [86400, 'day'], [3600, 'hour'], [60, 'minute']];
function ago(time) {
  const seconds = Date.now() / 1000 - time;
  const [size, unit] = UNITS.find(([size]) => seconds >= size) ?? [0, ''];
  const count = Math.floor(seconds / size);
  return size ? `${count} ${unit}${count > 1 ? 's' : ''} ago` : 'just now';
}

// A table and the chart beside it mark the same line, whichever of both is pointed at; null: none.
const POINTED = 'labkit-line';
function pointAt(host, line) {
  const name = line ? (host.rows.get(line.row.group) ?? line).row.name : null;
  if (host.data.eyes && name !== host.pointed) document.dispatchEvent(new CustomEvent(POINTED, { detail: name }));
}
function pointed(host, name) {
  host.pointed = name;
  host.lit?.classList.remove('lk-lit');
  const line = [...host.rows.values()].find(({ row }) => row.name === name);
  host.lit = line?.hidden ? host.rows.get(line.row.group) : line;
  host.lit?.classList.add('lk-lit');
}

const SVG = 'http://www.w3.org/2000/svg';
function drawPath(cell, box, path) {
  const drawing = document.createElementNS(SVG, 'svg');
  const line = document.createElementNS(SVG, 'path');
  line.setAttribute('d', path);
  drawing.setAttribute('viewBox', box);
  drawing.setAttribute('preserveAspectRatio', 'none');
  drawing.append(line);
  cell.append(drawing);
  return drawing;
}

const KINDS = {
  state(cell, [word, icon, color, reason]) {
    const shown = make(cell, 'span', 'lk-state');
    shown.style.color = `var(--st-${color}-text-color)`;
    make(shown, 'span', 'lk-icon').dataset.icon = icon;
    shown.firstChild.ariaHidden = 'true';
    shown.append(word);
    if (reason) make(cell, 'span', 'lk-said', `: ${cell.title = reason}`);
  },
  progress(cell, percent) {
    cell.textContent = `${percent} %`;
    make(make(cell, 'div', 'lk-track'), 'div').style.width = `${percent}%`;
  },
  curve(cell, { heights, label }) {
    const lines = heights.map((height, place) =>
      `${(place * 100 / Math.max(1, heights.length - 1)).toFixed(1)} ${100 - height}`);
    const drawing = drawPath(cell, '0 0 100 100', `M${lines.join(' ')} h.01`); // a single point is seen, too
    drawing.setAttribute('role', 'img');
    drawing.setAttribute('aria-label', label);
    cell.title = label;
  },
  tags: (cell, tags) => tags.forEach((tag) => cell.append(make(null, 'span', 'lk-chip', tag), ' ')),
  time(cell, time) {
    const shown = make(cell, 'time', '', ago(time));
    shown.dateTime = new Date(time * 1000).toISOString();
    shown.title = new Date(time * 1000).toLocaleString();
  },
};

function fill(cell, kind, value) {
  cell.textContent = '';
  cell.removeAttribute('title');
  if (value === null) cell.textContent = '–';
  else if (typeof value !== 'string') KINDS[kind](cell, value);
  else {
    cell.textContent = value;
    if (value.length > 20) cell.title = value; // it may be cut
  }
}

// Widens the columns to their longest text, up to a limit. They never get narrower: that would be restless.
const [LONGEST_NAME, LONGEST] = [34, 28];
const ON_PHONE = matchMedia('(max-width: 640px)'); // a state is an icon there, so that results are in sight
const lengthOf = (cell, kind) => {
  if (cell === null) return 1;
  if (typeof cell === 'string') return cell.length;
  if (kind === 'state') return ON_PHONE.matches ? 0 : cell[0].length + 4;
  return kind === 'tags' ? cell.join('123').length + 3 : kind === 'time' ? 16 : 15;
};
// The longer line of a title that is broken into two where that makes it narrowest.
const halfOf = (title) => Math.min(...[...`${title} `.matchAll(/ /g)].map(({ index }) => Math.max(index, title.length - index - 1)));
const pen = document.createElement('canvas').getContext('2d');
function widen(host) {
  const { columns, rows } = host.data;
  pen.font = getComputedStyle(host).font;
  const zero = pen.measureText('0').width;
  const letter = 0.84 * zero; // in a long text; those of a short one may be wider
  columns.forEach((column, place) => {
    const lengths = rows.map((row) => (place ? lengthOf(row.cells[place - 1], column.kind)
      : row.name.length + (row.runs ? 10 : row.group ? 3 : 0) + (row.mark ? 4 : 0)));
    const row = rows[lengths.indexOf(Math.max(...lengths))];
    const text = place ? row?.cells[place - 1] : row?.name;
    const more = place ? 0 : Math.max(0, ...lengths) - (text?.length ?? 0); // beside a name
    const drawn = typeof text === 'string' ? pen.measureText(text).width / (place ? letter : zero) + more : 0;
    const title = column.kind === 'state' && ON_PHONE.matches ? 5 : 0.9 * halfOf(column.title) + 2;
    const longest = Math.max(title, drawn, ...lengths);
    host.widths[place] = Math.max(host.widths[place] ?? 0, Math.min(longest, place ? LONGEST : LONGEST_NAME));
  });
  const [name, ...others] = host.widths;
  const parts = [`min(${name}ch + 18px, 44vw)`, ...others.map((width) => `calc(${0.84 * width}ch + 17px)`)];
  const before = host.data.eyes ? ['34px', '34px'] : ['34px']; // boxes, and eyes
  host.style.setProperty('--lk-before', `${34 * before.length}px`);
  host.style.setProperty('--lk-columns', `${[...before, ...parts.slice(0, -1)].join(' ')} minmax(${parts.at(-1)}, 1fr)`);
  host.style.setProperty('--lk-width', `calc(${[...before, ...parts].join(' + ')})`);
}

// Returns a box to tick. Its whole cell can be clicked.
function addBox(line) {
  const box = make(make(make(line, 'td', 'lk-box'), 'label'), 'input');
  box.type = 'checkbox';
  return box;
}

// Returns the button that shows or hides the curve of a row, or of all rows.
function addEye(line, name) {
  const eye = make(make(line, 'td', 'lk-eye'), 'button');
  eye.setAttribute('aria-label', name);
  return eye;
}

function look(eye, shown, title) {
  eye.setAttribute('aria-pressed', Boolean(shown));
  eye.title = title;
  drawMark(eye, shown);
}

// Draws a piece of the line of a row in a chart beside the table.
function drawMark(eye, shown) {
  eye.textContent = '';
  eye.style.color = shown?.color ?? '';
  if (shown?.color) drawPath(eye, '0 0 24 3', 'M0 1.5H24').firstChild.style.strokeDasharray = shown.dash.join(' ');
}

function head(host, columns) {
  const line = make(host.querySelector('thead'), 'tr');
  addBox(line).setAttribute('aria-label', 'Tick all');
  if (host.data.eyes) host.eye = addEye(line, 'All curves');
  for (const column of columns) {
    const cell = make(line, 'th', column === columns[0] ? 'lk-name' : `lk-of-${column.kind}`);
    cell.setAttribute('role', 'columnheader');
    cell.title = column.help;
    if (host.data.sort === null || column.kind === 'curve') cell.textContent = column.title;
    else Object.assign(make(cell, 'button', '', column.title).dataset, { sort: column.name, ...column.high && { best: 1 } });
  }
}

// Draws a row, or the parts of it that have changed.
function draw(host, row) {
  const before = host.rows.get(row.key);
  const line = before ?? make(null, 'tr');
  const columns = host.data.columns.slice(1);
  if (!before) {
    host.rows.set(row.key, line);
    line.box = addBox(line);
    line.box.tabIndex = -1;
    if (host.data.eyes && row.group) make(line, 'td', 'lk-eye'); // the eye is that of the group
    else if (host.data.eyes) line.eye = addEye(line);
    if (line.eye) line.eye.tabIndex = -1;
    const name = make(line, 'th', 'lk-name');
    name.setAttribute('role', 'rowheader');
    line.main = make(name, row.href ? 'a' : row.runs ? 'button' : 'span');
    if (line.main.tagName !== 'SPAN') line.main.tabIndex = -1;
    if (row.mark !== undefined) line.mark = make(name, 'span', 'lk-mark');
    if (row.runs) make(name, 'span', 'lk-count');
    else if (row.texts) Object.assign(line.pencil = make(name, 'button', 'lk-pencil'), { tabIndex: -1, title: 'Change name, tags and note (F2)' });
    columns.forEach((column) => make(line, 'td', `lk-of-${column.kind}`));
  }
  if (before?.row.name !== row.name) {
    line.main.textContent = line.main.title = row.name;
    line.box.setAttribute('aria-label', `Tick ${row.name}`);
    line.pencil?.setAttribute('aria-label', `Change ${row.name}`);
    line.eye?.setAttribute('aria-label', `Curve of ${row.name}`);
  }
  if (line.eye) look(line.eye, row.eye, row.eye ? 'Hide its curve' : 'Show its curve');
  if (line.mark) drawMark(line.mark, row.mark);
  if (row.href) line.main.href = row.href;
  if (row.runs) line.main.parentElement.lastChild.textContent = ` ${row.runs} run${row.runs > 1 ? 's' : ''}`;
  const first = line.main.parentElement.cellIndex + 1;
  columns.forEach((column, place) => {
    const [old, now] = [before?.row.cells[place], row.cells[place]];
    if (!before || JSON.stringify(old) !== JSON.stringify(now)) fill(line.cells[place + first], column.kind, now);
    line.cells[place + first].classList.toggle('lk-best', Boolean(row.best?.includes(place)));
  });
  line.classList.toggle('lk-member', Boolean(row.group));
  line.row = row;
}

// Returns the keys in the order of their rows: new ones come last while somebody has ticked rows. Otherwise all
// are in the order that is asked for; where none is, those that are there keep their places. A row with fields
// in it keeps its place, too: a moved one loses the focus.
function arranged(host, keys) {
  const isOld = (key) => host.places.has(key);
  const old = keys.filter(isOld).sort((a, b) => host.places.get(a) - host.places.get(b));
  if (host.isTicked || host.querySelector('form')) return [...old, ...keys.filter((key) => !isOld(key))];
  if (host.data.sort) return keys;
  const above = new Map(); // the new rows that come before each old one
  const first = keys.find(isOld);
  let waiting = [];
  let top = [];
  for (const key of keys) {
    if (!isOld(key)) { waiting.push(key); continue; }
    if (key === first) top = waiting;
    above.set(key, key === first ? [] : waiting);
    waiting = [];
  }
  return [...top, ...old.flatMap((key) => [...above.get(key), key]), ...waiting];
}

// Puts the rows into their order. Those that are in place aren't touched: a moved row loses the focus.
function settle(host) {
  const rows = host.data.rows;
  const keys = arranged(host, rows.filter((row) => !row.group).map((row) => row.key))
    .flatMap((key) => [key, ...arranged(host, host.members.get(key) ?? [])]);
  const focus = document.activeElement;
  const body = host.querySelector('tbody');
  for (const [key, line] of host.rows) {
    if (host.keys.has(key)) continue;
    line.remove();
    host.rows.delete(key);
  }
  let at = body.firstChild;
  for (const key of keys) {
    const line = host.rows.get(key);
    if (line === at) at = at.nextSibling;
    else body.insertBefore(line, at);
  }
  if (host.contains(focus) && focus !== document.activeElement) focus.focus({ preventScroll: true });
  host.places = new Map(keys.map((key, place) => [key, place]));
}

const shownRows = (host) => [...host.querySelectorAll('tbody tr:not([hidden])')];

// The keys of the runs that the box of a row ticks.
const keysOf = (host, row) => (row.runs ? host.members.get(row.key) : [row.key]);

function paint(host) {
  const mark = (box, keys) => {
    const count = keys.filter((key) => host.ticked.has(key)).length;
    box.checked = count > 0 && count === keys.length;
    box.indeterminate = count > 0 && count < keys.length;
  };
  const runs = host.data.rows.filter((row) => !row.runs).map((row) => row.key);
  host.isTicked = runs.some((key) => host.ticked.has(key));
  mark(host.querySelector('thead input'), runs);
  for (const line of host.rows.values()) {
    const { row } = line;
    mark(line.box, keysOf(host, row));
    line.classList.toggle('lk-ticked', line.box.checked);
    line.hidden = Boolean(row.group) && !open.has(row.group);
    if (row.runs) line.main.setAttribute('aria-expanded', open.has(row.key));
  }
  for (const button of host.querySelectorAll('thead button[data-sort]')) {
    const way = { [button.dataset.sort]: 'ascending', [`-${button.dataset.sort}`]: 'descending' }[host.sort];
    button.parentElement.setAttribute('aria-sort', way ?? 'none');
  }
}

// One row at a time is a stop of the Tab key.
function stop(host, line) {
  const parts = 'input, textarea, a, button';
  host.stop?.querySelectorAll(parts).forEach((part) => { part.tabIndex = -1; });
  host.stop = line;
  line?.querySelectorAll(parts).forEach((part) => { part.tabIndex = 0; });
}

function clicked(host, event) {
  const button = event.target.closest('thead button');
  const line = event.target.closest('tbody tr');
  const eye = event.target.closest('.lk-eye button');
  if (eye) host.tell('eyed', { name: line?.row.name ?? '', shown: eye.ariaPressed !== 'true' });
  else if (button) {
    const name = button.dataset.sort;
    const ways = button.dataset.best ? [`-${name}`, name, ''] : [name, `-${name}`, '']; // the best come first
    host.sort = ways[(ways.indexOf(host.sort) + 1) % ways.length];
    paint(host);
    host.tell('sorted', host.sort);
  } else if (event.target === line?.pencil) edit(host, line);
  else if (event.target.type === 'checkbox') tick(host, event, line);
  else if (line?.row.runs && event.target.closest('button')) {
    if (!open.delete(line.row.key)) open.add(line.row.key);
    paint(host);
  } else if (event.target.closest('a') && !(event.ctrlKey || event.metaKey || event.shiftKey || event.altKey)) {
    event.preventDefault(); // other clicks open another tab or window
    host.tell('opened', line.row.key);
  }
}

function tick(host, event, line) {
  let lines = line ? [line] : [...host.rows.values()];
  if (line && event.shiftKey) { // all from the one that was ticked before
    const shown = shownRows(host);
    const [from, to] = [shown.indexOf(host.rows.get(host.last)), shown.indexOf(line)].sort((a, b) => a - b);
    if (from >= 0) lines = shown.slice(from, to + 1);
  }
  host.last = line?.row.key;
  const { checked } = event.target;
  for (const key of lines.flatMap((one) => keysOf(host, one.row))) {
    if (checked) host.ticked.add(key);
    else host.ticked.delete(key);
  }
  paint(host);
  host.keep('ticked', [...host.ticked]);
}

// Fields below the row for what can be changed of it. Enter keeps it, with Shift it begins a line of the note;
// Escape leaves it. They stay open until the server has answered, and after a refusal.
const FIELDS = { name: 'Name', tags: 'Tags, with commas between', note: 'Note' };

function edit(host, line) {
  if (!line.form) {
    const cell = make(line, 'td', 'lk-edit');
    cell.colSpan = line.cells.length - 1;
    const form = line.form = make(cell, 'form');
    form.setAttribute('aria-label', `Change ${line.row.name}`);
    for (const [name, title] of Object.entries(FIELDS)) {
      Object.assign(make(make(form, 'label', '', title), name === 'note' ? 'textarea' : 'input'), { name, rows: 1 });
    }
    make(form, 'button', '', 'Save');
    Object.assign(make(form, 'button', '', 'Cancel'), { type: 'button', onclick: () => leave(line, line) });
    form.onkeydown = (event) => {
      event.stopPropagation(); // the arrow keys move between rows
      if (event.isComposing) return;
      if (event.key === 'Escape') leave(line, line);
      if (event.key !== 'Enter' || event.shiftKey || event.target.type !== 'textarea') return;
      event.preventDefault();
      form.requestSubmit();
    };
    form.onsubmit = (event) => {
      event.preventDefault();
      if (form.stamp) return; // it waits for the answer
      const now = {};
      for (const { name, value } of fieldsOf(form)) if (value !== shownText(form.had[name])) now[name] = value;
      if (!Object.keys(now).length) { leave(line, line); return; }
      for (const field of fieldsOf(form)) field.readOnly = true;
      host.tell('edited', { key: line.row.key, stamp: form.stamp = Math.random(), before: form.had, now });
    };
    begin(line);
    for (const field of fieldsOf(form)) field.value = form.had[field.name];
  }
  line.form.scrollIntoView({ block: 'nearest' });
  line.form.elements.name.focus();
  line.form.elements.name.select();
}

const fieldsOf = (form) => [...form.elements].filter(({ name }) => name);
const shownText = (text) => text.replace(/\r\n?/g, '\n'); // as a field gives it back

// Lets the fields be changed, from what the row has now.
function begin({ form, row }) {
  form.had = { name: row.name.split('/').at(-1), ...row.texts }; // of two runs with one name, the path is shown
  form.stamp = 0;
  for (const field of fieldsOf(form)) field.readOnly = false;
}

function leave(line, next) {
  line.form.parentElement.remove();
  line.form = null;
  next?.main.focus();
}

function pressed(host, event) {
  const line = event.target.closest('tr'); // that of the header, too, from which the arrows lead to the rows
  if (!line) return;
  if (event.key === 'F2' && line.pencil) edit(host, line);
  if (event.key === ' ' && event.target === line.main) {
    event.preventDefault();
    line.box.click();
  }
  if (event.key === 'Enter' && event.target === line.box) line.main?.click();
  const shown = shownRows(host);
  const last = shown.length - 1;
  const to = { ArrowDown: shown.indexOf(line) + 1, ArrowUp: shown.indexOf(line) - 1, Home: 0, End: last }[event.key];
  if (to === undefined) return;
  event.preventDefault();
  const place = event.target.closest('td, th').cellIndex;
  const row = shown[Math.min(Math.max(to, 0), last)];
  (row?.cells[place].querySelector('input, a, button') ?? row?.main)?.focus();
}

export default function ({ data: bytes, parentElement, setStateValue, setTriggerValue }) {
  const data = JSON.parse(new TextDecoder().decode(bytes));
  let host = parentElement.querySelector('.lk-runs');
  if (!host) {
    host = make(parentElement, 'div', 'lk-runs');
    Object.assign(host, { ticked: new Set(data.ticked), rows: new Map(), places: new Map() });
    host.onclick = (event) => clicked(host, event);
    host.onkeydown = (event) => pressed(host, event);
    host.addEventListener('focusin', (event) => { // there is no onfocusin
      const line = event.target.closest('tbody tr');
      if (line) stop(host, line);
      pointAt(host, line);
    });
    host.onpointerover = (event) => pointAt(host, event.target.closest('tbody tr'));
    host.onpointerleave = () => pointAt(host, null);
    host.addEventListener('focusout', host.onpointerleave);
  }
  Object.assign(host, { data, sort: data.sort, keep: setStateValue, tell: setTriggerValue });
  const columns = JSON.stringify([data.columns, data.eyes]);
  if (host.columns !== columns) {
    host.columns = columns;
    host.textContent = '';
    host.rows.clear();
    const table = make(make(host, 'div'), 'table');
    make(table, 'caption', 'lk-said', `${data.label}. Arrows move between rows, Space ticks, Enter opens${data.edits ? ', F2 changes name, tags and note' : ''}.${data.eyes ? ' The eye of a row shows or hides its curve.' : ''}`);
    make(table, 'thead');
    make(table, 'tbody');
    host.widths = [];
    head(host, data.columns);
  }
  if (host.view !== data.view) host.places.clear();
  host.view = data.view;
  host.keys = new Set(data.rows.map((row) => row.key));
  host.members = new Map();
  for (const { key, group, runs } of data.rows) {
    if (runs) host.members.set(key, []);
    if (group) host.members.get(group).push(key);
  }
  host.isTicked = data.rows.some((row) => host.ticked.has(row.key));
  widen(host);
  const [stamp, key] = data.answer ?? [];
  const asked = stamp && [...host.rows.values()].find(({ form }) => form?.stamp === stamp);
  const hadFocus = asked?.form.contains(document.activeElement);
  for (const row of data.rows) draw(host, row);
  const isDrawn = data.rows.some((row) => row.eye);
  if (data.eyes) look(host.eye, isDrawn, isDrawn ? 'Hide all curves' : 'Show the curves of the first rows');
  if (asked && host.rows.has(key) && !host.places.has(key)) host.places.set(key, host.places.get(asked.row.key)); // renamed
  settle(host);
  paint(host);
  if (asked && key === null) begin(asked);
  else if (asked) leave(asked, hadFocus ? host.rows.get(key) : null);
  if (!host.stop?.isConnected) stop(host, host.querySelector('tbody tr'));
  const renew = () => host.querySelectorAll('time').forEach((part) => {
    part.textContent = ago(Date.parse(part.dateTime) / 1000);
  });
  clearInterval(host.timer);
  host.timer = setInterval(renew, 30000);
  const follow = ({ detail }) => pointed(host, detail);
  document.addEventListener(POINTED, follow);
  return () => {
    clearInterval(host.timer);
    document.removeEventListener(POINTED, follow);
  };
}
