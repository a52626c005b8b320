// A table of counts whose cells are buttons. Called for each new content; the host element is reused, so that
// the focus stays where it is. Names are set as text only: they may hold anything.
const number = (value) => value.toLocaleString('en');

function words(table, row, column) {
  const count = table.counts[row][column];
  const name = table.words.split(/(\{row\}|\{column\})/).map((part) =>
    part === '{row}' ? table.rows[row] : part === '{column}' ? table.columns[column] : part).join('');
  const whole = table.wholes[row];
  const share = whole ? ` (${(100 * count / whole).toFixed(1)}% of ${table.rows[row]})` : '';
  return `${name}: ${number(count)}${share}`;
}

function shade(table, row, column) {
  const share = Math.min(1, table.counts[row][column] / Math.max(1, table.wholes[row]));
  const part = table.good[row][column] ? 8 + 42 * share : 14 + 46 * Math.min(1, Math.sqrt(share * 2));
  const colour = table.good[row][column] ? '#2f7fd1' : '#e0563f';
  return `color-mix(in srgb, ${colour} ${part.toFixed(0)}%, transparent)`;
}

function build(host, table) {
  host.textContent = '';
  host.buttons = new Map();
  const scroll = document.createElement('div');
  scroll.className = 'lk-scroll';
  const drawn = document.createElement('table');
  drawn.className = table.upright ? '' : 'lk-turned';
  const caption = document.createElement('caption');
  caption.className = 'lk-said';
  caption.textContent = 'Each cell opens its images. Arrow keys move between cells.';
  drawn.appendChild(caption);
  const button = (parent, row, column, text, label) => {
    const made = document.createElement('button');
    made.type = 'button';
    made.textContent = text;
    made.title = label;
    made.setAttribute('aria-label', label);
    made.tabIndex = -1;
    made.dataset.row = row;
    made.dataset.column = column;
    parent.appendChild(made);
    host.buttons.set(`${row},${column}`, made);
    return made;
  };
  const head = drawn.createTHead().insertRow();
  const corner = document.createElement('th');
  corner.className = 'lk-corner';
  corner.textContent = table.corner.replace(' ↓ ', ' ↓\n');
  head.appendChild(corner);
  table.columns.forEach((name, column) => {
    const cell = document.createElement('th');
    cell.scope = 'col';
    if (table.upright) cell.textContent = name;
    else button(cell, -1, column, name, `All images predicted as ${name}`);
    head.appendChild(cell);
  });
  const body = drawn.createTBody();
  table.rows.forEach((name, row) => {
    const line = body.insertRow();
    const first = document.createElement('th');
    first.scope = 'row';
    button(first, row, -1, name, `All images of ${name}`);
    line.appendChild(first);
    table.columns.forEach((_, column) => {
      const cell = line.insertCell();
      if (!table.counts[row][column]) return;
      const made = button(cell, row, column, number(table.counts[row][column]), words(table, row, column));
      made.style.background = shade(table, row, column);
    });
  });
  scroll.appendChild(drawn);
  const under = document.createElement('p');
  under.className = 'lk-under';
  host.append(scroll, under);
}

// The next button in a direction. Cells without images are passed over.
function next(host, table, row, column, down, right) {
  for (;;) {
    row += down;
    column += right;
    if (row < -1 || column < -1 || row >= table.rows.length || column >= table.columns.length) return null;
    const found = host.buttons.get(`${row},${column}`);
    if (found) return found;
  }
}

const MOVES = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

export default function ({ data, parentElement, setStateValue }) {
  let host = parentElement.querySelector('.lk-matrix');
  if (!host) {
    host = document.createElement('div');
    host.className = 'lk-matrix';
    parentElement.appendChild(host);
  }
  const table = data.table;
  if (host.dataset.mark !== data.mark) {
    build(host, table);
    host.dataset.mark = data.mark;
  }
  const stop = (made) => {  // one stop of the Tab key for the whole table
    host.buttons.forEach((other) => { if (other.tabIndex === 0) other.tabIndex = -1; });
    if (made) made.tabIndex = 0;
  };
  const under = host.querySelector('.lk-under');
  host.buttons.forEach((made) => { if (made.ariaPressed === 'true') made.setAttribute('aria-pressed', 'false'); });
  const chosen = data.chosen && host.buttons.get(data.chosen.join(','));
  if (chosen) chosen.setAttribute('aria-pressed', 'true');
  under.textContent = chosen ? chosen.title : 'Click a cell to see its images.';
  if (!host.contains(document.activeElement)) {
    stop(chosen || host.buttons.get('0,0') || host.buttons.values().next().value);
  }
  host.onclick = (event) => {
    const made = event.target.closest('button');
    if (!made) return;
    stop(made);
    const row = Number(made.dataset.row), column = Number(made.dataset.column);
    const again = made === chosen;  // a second click takes the choice back
    setStateValue('cell', { row: again ? -1 : row, column: again ? -1 : column, time: Date.now() });
    const grid = document.querySelector('.lk-grid');
    if (!grid || again) return;
    const box = grid.getBoundingClientRect();
    if (box.top < 0 || box.top > window.innerHeight * 0.7) {
      const calm = window.matchMedia('(prefers-reduced-motion: reduce)').matches;
      grid.scrollIntoView({ block: 'start', behavior: calm ? 'auto' : 'smooth' });
    }
  };
  host.addEventListener('focusin', (event) => { if (event.target.closest('button')) stop(event.target.closest('button')); });
  host.onmouseover = (event) => {
    const made = event.target.closest('button');
    if (made) under.textContent = made.title;
  };
  host.onkeydown = (event) => {
    const made = event.target.closest('button');
    const move = MOVES[event.key];
    if (!made || !move) return;
    event.preventDefault();
    const found = next(host, table, Number(made.dataset.row), Number(made.dataset.column), ...move);
    if (found) {
      stop(found);
      found.focus();
      under.textContent = found.title;
    }
  };
}
