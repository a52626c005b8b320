/* A heat map on a canvas of one pixel a cell, with the value under the pointer or at the arrow keys.
   The server sends the bytes that app/charts/heat.py writes. */
(function () {
  const ROW = 11, LEAST = 180, MOST = 660, LABEL = 10; // pixels: of a row, of the map, of a name

  const element = (tag, name, parent) => {
    const made = document.createElement(tag);
    if (name) made.className = name;
    if (parent) parent.appendChild(made);
    return made;
  };

  function decode(bytes) {
    const data = bytes instanceof Uint8Array ? bytes : new Uint8Array(bytes);
    const length = new DataView(data.buffer, data.byteOffset, 8).getUint32(0, true);
    const heat = JSON.parse(new TextDecoder().decode(data.subarray(8, 8 + length)));
    const cells = heat.names.length * heat.columns.length, start = 8 + length;
    heat.values = new Float64Array(data.slice(start, start + 8 * cells).buffer);
    heat.colors = new Uint8ClampedArray(data.slice(start + 8 * cells, start + 12 * cells).buffer);
    return heat;
  }

  function number(value, unit) {
    if (Number.isNaN(value)) return 'NaN';
    if (!Number.isFinite(value)) return value > 0 ? '∞' : '−∞';
    if (unit === 'percent') return Number((value * 100).toPrecision(6)) + ' %';
    return value !== 0 && Math.abs(value) < 1e-4 ? Number(value.toPrecision(6)).toExponential() : String(Number(value.toPrecision(6)));
  }

  class Heat {
    constructor(parent) {
      this.root = element('article', 'lk-chart lk-heat', parent);
      this.root.tabIndex = 0;
      this.root.setAttribute('role', 'group');
      this.title = element('h3', 'lk-title', element('div', 'lk-top', this.root));
      const body = element('div', 'lk-heat-body', this.root);
      this.names = element('div', 'lk-heat-names', body);
      this.map = element('div', 'lk-heat-map', body);
      this.canvas = element('canvas', '', this.map);
      this.cell = element('div', 'lk-heat-cell', this.map);
      this.tip = element('div', 'lk-tip', this.map);
      this.tip.hidden = this.cell.hidden = true;
      this.bar = element('div', 'lk-heat-bar', body);
      this.steps = element('div', 'lk-heat-steps', body);
      this.said = element('div', 'lk-said', this.root);
      this.said.setAttribute('role', 'status');
      this.map.addEventListener('pointermove', (event) => this.point(event));
      this.map.addEventListener('pointerdown', (event) => this.point(event));
      this.map.addEventListener('pointerleave', (event) => { if (event.pointerType !== 'touch') this.show(null); });
      this.root.addEventListener('blur', () => this.show(null));
      this.root.addEventListener('keydown', (event) => this.press(event));
      this.sizes = new ResizeObserver(() => this.label());
      this.sizes.observe(this.root);
    }

    update(heat) {
      this.data = heat;
      const rows = heat.names.length, columns = heat.columns.length;
      this.title.textContent = heat.title;
      this.root.setAttribute('aria-label', `${heat.title}. Arrow keys move from cell to cell and read its value.`);
      this.height = Math.min(MOST, Math.max(LEAST, ROW * rows));
      this.canvas.width = columns;
      this.canvas.height = rows;
      this.map.style.height = `${this.height}px`;
      if (rows && columns) this.canvas.getContext('2d').putImageData(new ImageData(heat.colors, columns, rows), 0, 0);
      this.bar.style.setProperty('--lk-stops', `linear-gradient(to top, ${heat.stops.join(', ')})`);
      this.bar.replaceChildren();
      for (const [place, text] of heat.ticks) {
        const tick = element('span', '', this.bar);
        tick.style.bottom = `${place * 100}%`;
        tick.textContent = text;
      }
      const every = Math.ceil(LABEL * rows / this.height);
      this.names.replaceChildren();
      heat.names.forEach((name, row) => {
        if (row % every) return;
        const label = element('span', '', this.names);
        label.textContent = label.title = name;
        label.style.top = `${(row + 0.5) / rows * 100}%`;
      });
      this.longest = 6 + 5.2 * Math.max(0, ...heat.names.map((name) => name.length));
      this.label();
      if (this.at) this.show([Math.min(this.at[0], rows - 1), Math.min(this.at[1], columns - 1)]);
    }

    label() { // the steps below the map, as many as there is room for
      if (!this.data) return;
      this.names.style.width = `${Math.min(150, 0.28 * this.root.clientWidth, this.longest)}px`;
      const { columns } = this.data, count = Math.max(1, Math.min(columns.length, Math.floor(this.map.clientWidth / 60)));
      this.steps.replaceChildren();
      for (let i = 0; i < count; i++) {
        const column = count === 1 ? columns.length - 1 : Math.round(i * (columns.length - 1) / (count - 1));
        const label = element('span', '', this.steps);
        label.textContent = columns[column].toLocaleString('en-US');
        label.style.left = `${(column + 0.5) / columns.length * 100}%`;
      }
    }

    point(event) {
      const box = this.canvas.getBoundingClientRect(), { names, columns } = this.data;
      const row = Math.floor((event.clientY - box.top) / box.height * names.length);
      const column = Math.floor((event.clientX - box.left) / box.width * columns.length);
      const inside = row >= 0 && row < names.length && column >= 0 && column < columns.length;
      this.show(inside ? [row, column] : null);
    }

    show(at) {
      this.at = at;
      this.tip.hidden = this.cell.hidden = !at;
      if (!at) return '';
      const [row, column] = at, { names, columns, values, colors, unit } = this.data;
      const place = row * columns.length + column, value = values[place];
      const has = colors[4 * place + 3] || !Number.isNaN(value); // without a value, a cell is NaN and clear
      const step = `step ${columns[column].toLocaleString('en-US')}`, text = has ? number(value, unit) : '–';
      this.tip.replaceChildren();
      element('b', '', element('div', '', this.tip)).textContent = names[row];
      element('div', '', this.tip).textContent = `${step}: ${text}`;
      const width = this.map.clientWidth / columns.length, height = this.height / names.length;
      Object.assign(this.cell.style, { left: `${column * width}px`, top: `${row * height}px`, width: `${width}px`, height: `${height}px` });
      const onLeft = column > columns.length / 2, below = row < names.length / 2;
      this.tip.style.left = onLeft ? '' : `${(column + 1) * width + 8}px`;
      this.tip.style.right = onLeft ? `${this.map.clientWidth - column * width + 8}px` : '';
      this.tip.style.top = below ? `${row * height}px` : '';
      this.tip.style.bottom = below ? '' : `${this.height - (row + 1) * height}px`;
      return `${names[row]}, ${step}: ${text}`;
    }

    press(event) {
      const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.key === 'Escape' && this.at) { this.show(null); event.stopPropagation(); return; }
      const move = moves[event.key];
      if (!move || !this.data.columns.length) return;
      event.preventDefault();
      event.stopPropagation();
      const rows = this.data.names.length, columns = this.data.columns.length, far = event.shiftKey ? 10 : 1;
      const [row, column] = this.at || [move[0] < 0 ? rows : move[0] > 0 ? -1 : 0, move[1] > 0 ? -1 : columns];
      const within = (value, count) => Math.min(count - 1, Math.max(0, value));
      this.said.textContent = this.show([within(row + move[0] * far, rows), within(column + move[1] * far, columns)]);
    }
  }

  globalThis.labkitHeat = {
    render(parent, bytes) {
      const heat = parent.labkitHeat ||= new Heat(parent);
      if (!bytes || (heat.bytes?.length === bytes.length && heat.bytes.every((value, i) => value === bytes[i]))) return;
      heat.bytes = bytes;
      heat.update(decode(bytes));
    },
    leave(parent) {
      setTimeout(() => { // Streamlit also calls this between two updates
        if (parent.isConnected || !parent.labkitHeat) return;
        parent.labkitHeat.sizes.disconnect();
        parent.labkitHeat.root.remove();
        delete parent.labkitHeat;
      });
    },
  };
})();
