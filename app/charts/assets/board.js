/* A board of charts that share their horizontal axis: zoom, cursor and keys. Drawn by uPlot on canvases.
   The server sends the bytes that app/charts/board.py writes, once for each change and each zoom. */
(function () {
  const WAIT_FOR_SERVER = 3000; // ms; how long a zoom that the person made outlives what the server sends
  const NEAR = 40; // pixels; points further from the cursor are not shown in the tooltip
  const NOT_FINITE = '#d92d43';
  const PICKED = '#b65fb0'; // of the vertical line at a picked point
  const MOST_DASHED = 3200; // points of a dashed line: of more it takes long to draw, and looks like none
  const PALE_BESIDE = 0.2; // opacity of the lines beside the one whose name is pointed at
  const TOP_BAR = 60; // pixels; Streamlit's bar may cover the top of the window
  const NEAR_MARK = 6; // pixels; so near the cursor, a mark is meant
  const DOUBLE_CLICK = 250; // milliseconds in which a second click makes a double click
  const STANDS = 200; // milliseconds that the cursor of the keys stands before its point is picked
  const ICONS = {
    'zoom in': 'M7 2a5 5 0 1 0 3 9l4 4 1-1-4-4A5 5 0 0 0 7 2M4.5 7h5M7 4.5v5',
    'zoom out': 'M7 2a5 5 0 1 0 3 9l4 4 1-1-4-4A5 5 0 0 0 7 2M4.5 7h5',
    'whole run': 'M2 8a6 6 0 1 0 2-4.5M2 2v4h4',
    'full screen': 'M2 6V2h4M10 2h4v4M14 10v4h-4M6 14H2v-4',
    'save as picture': 'M8 2v8M4.5 7 8 10.5 11.5 7M2 14h12',
  };

  const element = (tag, name, parent) => {
    const made = document.createElement(tag);
    if (name) made.className = name;
    if (parent) parent.appendChild(made);
    return made;
  };

  function decode(bytes) {
    const data = bytes instanceof Uint8Array ? bytes : new Uint8Array(bytes);
    const length = new DataView(data.buffer, data.byteOffset, 8).getUint32(0, true);
    const board = JSON.parse(new TextDecoder().decode(data.subarray(8, 8 + length)));
    const numbers = new Float64Array(data.slice(8 + length).buffer);
    const array = ([first, count]) => numbers.subarray(first, first + count);
    for (const chart of board.charts)
      for (const line of chart.lines) {
        line.x = array(line.x);
        line.y = array(line.y);
        for (const mark of line.marks) mark.x = array(mark.x);
      }
    return board;
  }

  // ---- numbers in words ----------------------------------------------------------------------------------

  const plain = (value, digits) => Number(value.toPrecision(digits)).toLocaleString('en-US',
    { maximumFractionDigits: 20, useGrouping: Math.abs(value) >= 1000 });

  function number(value, unit, digits = 6) {
    if (value == null || Number.isNaN(value)) return '–';
    if (!Number.isFinite(value)) return value > 0 ? '∞' : '−∞';
    if (unit === 'percent') return plain(value * 100, digits) + ' %';
    if (unit === 'bytes') {
      const power = Math.min(4, Math.floor(Math.log(Math.max(Math.abs(value), 1)) / Math.log(1024)));
      return plain(value / 1024 ** power, digits === 6 ? 4 : digits) + ' ' + ['B', 'KiB', 'MiB', 'GiB', 'TiB'][power];
    }
    const size = Math.abs(value);
    const shown = size && (size < 1e-4 || size >= 1e9) ? value.toExponential(Math.max(0, digits - 3)) : plain(value, digits);
    return shown + (unit === 'seconds' ? ' s' : '');
  }

  // As many digits as tell a tick from its neighbours, a distance of `apart` away.
  const digits = (value, apart) => (apart > 0 && value ? Math.min(12, Math.max(4, 1 + Math.ceil(Math.log10(Math.abs(value) / apart)))) : 4);

  function span(seconds) {
    const sign = seconds < 0 ? '−' : '';
    seconds = Math.abs(seconds);
    if (seconds < 60) return sign + plain(seconds, 3) + ' s';
    const whole = Math.round(seconds), two = (n) => String(n).padStart(2, '0');
    if (whole < 3600) return `${sign}${Math.floor(whole / 60)}:${two(whole % 60)} min`;
    return `${sign}${Math.floor(whole / 3600)}:${two(Math.floor(whole / 60) % 60)} h`;
  }

  function place(x, axis, long) {
    if (axis === 'clock') {
      const date = new Date(x * 1000), day = { month: 'short', day: 'numeric' };
      const time = { hour: '2-digit', minute: '2-digit', second: '2-digit', hour12: false };
      return date.toLocaleString('en-GB', long ? { ...day, ...time } : time);
    }
    if (axis === 'seconds') return span(x);
    if (axis === 'value' || axis === 'percent') return number(x, axis);
    if (axis === 'count') return x.toLocaleString('en-US');
    if (axis === 'epoch') return (long ? 'epoch ' : '') + plain(x, 6);
    return (long ? 'step ' : '') + x.toLocaleString('en-US');
  }

  // ---- axes ----------------------------------------------------------------------------------------------

  const CLOSE = 1e-12; // a smaller part of a number is lost when ticks are added up
  const MOST = 1e300; // the distance between two ends is a number, too

  // uPlot never returns from ends that are equal, next to equal or not finite: every range it gets comes from here.
  // Equal ends are moved apart by `room`; without it by a tenth of their value.
  function ends(range, room) {
    const [low, high] = (range || [0, 1]).map((end) => Math.min(MOST, Math.max(-MOST, end)));
    if (!(low <= high)) return [0, 1]; // NaN
    if (high - low > CLOSE * Math.max(Math.abs(low), Math.abs(high))) return [low, high];
    const apart = Math.max(room ?? (Math.abs(high) * 0.1 || 1), 2 * CLOSE * Math.abs(high));
    return [low >= 0 ? Math.max(0, low - apart) : low - apart, high + apart];
  }

  const ROUND = [1, 2, 5, 10];

  // The ticks of a logarithmic axis, some eight at most. uPlot's own aren't round, and it never returns below 1e-22.
  function powers(low, high) {
    const first = Math.floor(Math.log10(low)), last = Math.ceil(Math.log10(high)), span = Math.log10(high) - Math.log10(low);
    if (span < 0.5) {
      const size = 10 ** Math.floor(Math.log10((high - low) / 5)), step = size * ROUND.find((factor) => factor * size >= (high - low) / 5.001);
      const from = Math.ceil(low / step), to = Math.floor(high / step);
      return Array.from({ length: to - from + 1 }, (_, i) => Number(((from + i) * step).toPrecision(14)));
    }
    const digits = span > 2.5 ? [1] : span > 1.2 ? [1, 2, 5] : [1, 2, 3, 5, 7], every = Math.ceil(span / 8);
    return Array.from({ length: last - first + 1 }, (_, i) => first + i).filter((power) => power % every === 0)
      .flatMap((power) => digits.map((digit) => Number(`${digit}e${power}`))).filter((tick) => tick >= low && tick <= high);
  }

  const LOGARITHMIC = { splits: (u, axis, low, high) => powers(low, high), filter: (u, ticks) => ticks };

  // Distances between ticks at whole numbers.
  const WHOLE = Array.from({ length: 13 }, (_, power) => [1, 2, 5].map((digit) => digit * 10 ** power)).flat();

  // The horizontal axis of names: they are long, so they stand upright. Of longer ones the end is kept, which tells layers apart.
  const LONGEST_NAME = 20;
  const NAMES = { size: (u, names) => Math.min(120, 14 + 6 * Math.max(0, ...(names || []).map((name) => String(name ?? '').length))),
    space: 16, rotate: -90, incrs: WHOLE };

  // Distances between ticks of values and of bytes. uPlot's own end at 1e32, a float32 at 3e38.
  const DECIMAL = Array.from({ length: 330 }, (_, i) => [1, 2, 2.5, 5].map((digit) => Number(`${digit}e${i - 30}`))).flat();
  const BINARY = Array.from({ length: 60 }, (_, power) => 2 ** power);

  const counted = (line) => !['faint', 'thin', 'row', 'dashed', 'edge'].includes(line.style);
  const ofMany = ({ line }) => ['thin', 'row'].includes(line.style); // of which the pointer names the nearest
  const ofTable = ({ line }) => line.style === 'row';
  // A table and the chart beside it mark the same line, whichever of both is pointed at; null: none.
  const POINTED = 'labkit-line';
  const point = (name) => document.dispatchEvent(new CustomEvent(POINTED, { detail: name }));

  const STROKES = { faint: { width: 1 }, thin: { width: 1 }, edge: { width: 0.7 }, dots: { width: 0, paths: () => null }, bars: { width: 0, paths: uPlot.paths.bars({ size: [0.9] }) }, dashed: { width: 1.2, dash: [6, 4] } };
  const PALE = { faint: '55', edge: '55', thin: '88' }; // the opacity, as two digits after the colour
  const dashed = (line) => (line.y.length <= MOST_DASHED ? line.dash : []);
  const stroked = (line) => ({ stroke: line.color + (PALE[line.style] || ''), fill: line.style === 'bars' ? line.color : undefined, width: line.other ? 1.1 : 1.8, dash: dashed(line), ...STROKES[line.style] });

  // A piece of a line, long enough to show how it is dashed.
  function swatch(line, parent) {
    const svg = document.createElementNS('http://www.w3.org/2000/svg', 'svg');
    svg.setAttribute('class', 'lk-swatch');
    svg.setAttribute('aria-hidden', 'true');
    const path = document.createElementNS(svg.namespaceURI, 'path');
    const look = { d: 'M0 2H24', stroke: line.color, 'stroke-width': 2.5, 'stroke-dasharray': dashed(line).join(' ') || 'none' };
    for (const [name, value] of Object.entries(look)) path.setAttribute(name, value);
    svg.append(path);
    parent.append(svg);
  }

  // ---- one chart -----------------------------------------------------------------------------------------

  class Chart {
    constructor(board, key) {
      this.board = board;
      this.key = key;
      this.hidden = new Set();
      this.root = element('article', 'lk-chart', board.root);
      this.root.tabIndex = 0;
      this.root.setAttribute('role', 'group');
      const top = element('div', 'lk-top', this.root);
      this.title = element('h3', 'lk-title', top);
      this.legend = element('div', 'lk-legend', top);
      this.tools(element('div', 'lk-tools', top));
      this.draw = element('div', 'lk-draw', this.root);
      this.tip = element('div', 'lk-tip', this.draw);
      this.tip.hidden = true;
      const foot = element('div', 'lk-foot', this.root);
      this.left = element('span', '', foot);
      this.points = element('span', 'lk-points', foot);
      this.said = element('div', 'lk-said', this.root);
      this.said.setAttribute('role', 'status');
      this.sizes = new ResizeObserver(() => this.resize());
      this.sizes.observe(this.draw);
      this.root.addEventListener('keydown', (event) => this.press(event));
      this.root.addEventListener('blur', () => { this.board.walked = null; });
      document.addEventListener('fullscreenchange', this.onFull = () => this.resize());
      this.pointed = this.stressed = null;
      document.addEventListener(POINTED, this.onPointed = ({ detail }) => this.stress(detail));
    }

    tools(place) {
      const actions = { 'zoom in': () => this.board.scale(0.5, this.at()), 'zoom out': () => this.board.scale(2, this.at()),
        'whole run': () => this.board.zoom(null), 'full screen': () => this.full(), 'save as picture': () => this.save() };
      for (const [name, act] of Object.entries(actions)) {
        const button = element('button', '', place);
        button.type = 'button';
        button.title = name;
        button.innerHTML = `<svg viewBox="0 0 16 16" fill="none" stroke="currentColor" stroke-width="1.5" aria-hidden="true"><path d="${ICONS[name]}"/></svg>`;
        button.setAttribute('aria-label', name);
        button.addEventListener('click', act);
      }
    }

    update(chart) {
      const shape = JSON.stringify([chart.unit, chart.logarithmic, this.board.data.axis, this.board.data.xTitle,
        chart.lines.map((line) => [line.name, line.color, line.style, dashed(line), line.style === 'marked' && line.y.length < 60])]);
      this.data = chart;
      this.title.textContent = chart.title;
      this.root.setAttribute('aria-label', `${chart.title}. Arrow keys move the cursor${this.board.data.pick ? ` and what is picked` : ''}${this.hasRows() ? ' and choose the curve' : ''}, + and − zoom, 0 shows the whole run, F fills the screen, S saves a picture.${this.board.data.pick ? ` Enter shows ${this.board.data.pick}, J those of the next jump of the loss.` : ''}`);
      const points = uPlot.join(chart.lines.length ? chart.lines.map((line) => [line.x, this.gapped(line)]) : [[[], []]],
        chart.lines.length ? chart.lines.map(() => [0, 2]) : [[0, 2]]);
      if (shape !== this.shape || !this.plot) {
        this.shape = shape;
        this.plot?.destroy();
        this.plot = new uPlot(this.options(), points, this.draw);
        this.listen();
        this.drawLegend();
        this.stress(this.stressed);
      } else {
        this.plot.setData(points, false);
      }
      this.rescale();
      const sum = (what) => chart.lines.filter((line) => counted(line) || line.style !== 'edge' && !chart.lines.some(counted))
        .reduce((total, line) => total + what(line), 0);
      const shown = sum((line) => line.y.length), all = sum((line) => line.of);
      this.points.textContent = all ? `${Math.min(shown, all).toLocaleString('en-US')} of ${all.toLocaleString('en-US')} points` : 'no points here';
      this.left.textContent = chart.lines.flatMap((line) => line.marks.map((mark) => `${line.name}: ${mark.kind} × ${mark.count.toLocaleString('en-US')}`)).join(' · ');
      this.showTip();
    }

    gapped(line) { // null makes a gap
      return Array.from(line.y, (value) => (Number.isFinite(value) && !(this.data.logarithmic && value <= 0) ? value : null));
    }

    options() {
      const board = this.board, style = () => getComputedStyle(this.root);
      const text = () => style().color;
      const line = () => style().getPropertyValue('--st-border-color') || '#8884';
      const font = '11px ' + (style().fontFamily || 'sans-serif');
      const axis = { stroke: text, font, grid: { stroke: line, width: 1 }, ticks: { show: false }, gap: 4 };
      return {
        ...this.size(),
        legend: { show: false },
        focus: { alpha: PALE_BESIDE },
        padding: [8, 22, 0, 0],
        cursor: { drag: { x: true, y: false, setScale: false }, points: { show: false }, y: false },
        scales: {
          x: { time: false, range: () => board.shown() },
          y: { distr: this.data.logarithmic ? 3 : 1, range: () => this.range() },
        },
        axes: [
          { ...axis, ...(board.data.axis === 'name' ? NAMES : { size: 24, space: 70, ...(whole(board.data.axis) ? { incrs: WHOLE } : {}) }), label: board.data.xTitle, labelSize: 15, labelGap: 0, labelFont: font,
            values: (u, ticks) => ticks.map((x) => board.place(x)) },
          { ...axis, incrs: this.data.unit === 'bytes' ? BINARY : DECIMAL, ...(this.data.logarithmic ? LOGARITHMIC : {}), size: (u, values) => Math.max(38, ...(values || []).map((v) => 7 * String(v ?? '').length + 10)), space: 28,
            values: (u, ticks, axis, space, apart) => ticks.map((y) => (y == null ? '' : number(y, this.data.unit, digits(y, apart)))) },
        ],
        series: [{}, ...this.data.lines.map((one) => ({
          label: one.name, ...stroked(one),
          show: !this.hidden.has(one.name),
          points: { show: one.style === 'dots' || one.style === 'marked' && one.y.length < 60 || one.y.length === 1, size: 5, fill: one.color },
        }))],
        bands: this.data.lines.flatMap((one, i) => (one.band
          ? [{ series: [i + 1, this.data.lines.findIndex((other) => other.name === one.band) + 1], fill: one.color + '26' }] : [])),
        hooks: {
          draw: [(u) => this.decorate(u), (u) => { if (u === this.plot) this.keepCursor(); }],
          setSelect: [(u) => this.selected(u)],
          setCursor: [(u) => { if (!board.moving) board.move(this, u.cursor.left); }],
        },
      };
    }

    range() { // of the vertical axis: the visible points with some room, never a point at the very edge
      const [from, to] = this.board.shown();
      let low = Infinity, high = -Infinity;
      for (const line of this.data.lines) {
        if (this.hidden.has(line.name)) continue;
        for (let i = 0; i < line.x.length; i++) {
          const value = line.y[i];
          if (line.x[i] < from || line.x[i] > to || !Number.isFinite(value) || (this.data.logarithmic && value <= 0)) continue;
          if (value < low) low = value;
          if (value > high) high = value;
        }
      }
      if (low > high) return this.data.logarithmic ? [0.1, 1] : [0, 1];
      if (this.data.logarithmic) {
        const factor = low === high ? 2 : 1.15;
        return ends([Math.max(low, 1 / MOST) / factor, Math.max(high, 1 / MOST) * factor]);
      }
      if (low >= 0 && (this.data.unit === 'bytes' || this.data.lines.some((line) => line.style === 'bars'))) return ends([0, high * 1.06]);
      [low, high] = ends([low, high]);
      const room = (high - low) * 0.06;
      // A quantity that is never negative keeps its axis at or above zero.
      return [low >= 0 ? Math.max(0, low - room) : low - room, high + room];
    }

    rescale() {
      const [min, max] = this.board.shown();
      this.plot.setScale('x', { min, max });
    }

    size() {
      const full = document.fullscreenElement === this.root;
      return { width: Math.max(120, this.draw.clientWidth), height: full ? window.innerHeight - 110 : this.board.data.height };
    }

    resize() {
      if (!this.plot) return;
      const { width, height } = this.size();
      if (width !== this.plot.width || height !== this.plot.height) this.plot.setSize({ width, height });
    }

    drawLegend() {
      this.legend.replaceChildren();
      const names = this.data.lines.filter(counted).sort((one, two) => one.other - two.other);
      const long = names.reduce((sum, line) => sum + line.name.length + 4, this.data.title.length) > 52;
      this.legend.classList.toggle('lk-below', long); // the title and the buttons keep the first row
      if (this.data.lines.length < 2 && !this.data.named) return;
      for (const line of names) {
        const button = element('button', '', this.legend);
        button.type = 'button';
        swatch(line, button);
        button.append(line.name);
        button.title = `${line.name}: show or hide`;
        button.setAttribute('aria-pressed', String(!this.hidden.has(line.name)));
        for (const come of ['pointerenter', 'focus']) button.addEventListener(come, () => this.stress(line.name));
        for (const go of ['pointerleave', 'blur']) button.addEventListener(go, () => this.stress(null));
        button.addEventListener('click', () => {
          const hide = !this.hidden.has(line.name);
          for (const one of this.data.lines)
            if (one.name === line.name || one.name === line.name + ', raw')
              hide ? this.hidden.add(one.name) : this.hidden.delete(one.name);
          button.setAttribute('aria-pressed', String(!hide));
          this.data.lines.forEach((one, i) => this.plot.setSeries(i + 1, { show: !this.hidden.has(one.name) }));
          this.rescale();
        });
      }
    }

    hasRows() { return this.data.lines.some((line) => ofTable({ line })); }

    stress(name) { // all other lines become pale; none: all are as they were
      this.stressed = name;
      const at = this.data.lines.findIndex((line) => line.name === name);
      this.plot.setSeries(name !== null && at >= 0 ? at + 1 : null, { focus: true });
    }

    decorate(u) { // seams, and marks of what can't be drawn, on top of the lines
      const { ctx, bbox } = u, ratio = uPlot.pxRatio;
      const { color: text, backgroundColor: ground } = getComputedStyle(this.root);
      ctx.save();
      ctx.beginPath();
      ctx.rect(bbox.left, bbox.top - 6 * ratio, bbox.width, bbox.height + 6 * ratio);
      ctx.clip();
      ctx.strokeStyle = ctx.fillStyle = text;
      ctx.font = `${10 * ratio}px sans-serif`;
      ctx.textAlign = 'left';
      const seams = this.board.data.seams;
      for (const seam of seams) {
        const x = Math.round(u.valToPos(seam.x, 'x', true));
        ctx.strokeStyle = seam.strong ? PICKED : text;
        ctx.lineWidth = (seam.strong ? 2 : 1) * ratio;
        ctx.globalAlpha = seam.strong ? 1 : 0.5;
        ctx.setLineDash(seam.strong ? [] : [2 * ratio, 3 * ratio]);
        ctx.beginPath(); ctx.moveTo(x, bbox.top); ctx.lineTo(x, bbox.top + bbox.height); ctx.stroke();
        ctx.globalAlpha = 0.8;
        if (!seam.row && seams.length > 4) continue;
        const width = ctx.measureText(seam.label).width, after = bbox.left + bbox.width - x - 6 * ratio;
        const before = width > after && x - bbox.left > after; // there is more room before it
        const room = before ? x - bbox.left - 6 * ratio : after;
        const label = width <= room ? seam.label : `${seam.label.slice(0, Math.floor(seam.label.length * room / width) - 1)}…`;
        ctx.textAlign = before ? 'right' : 'left';
        const place = [label, x + (before ? -4 : 4) * ratio, bbox.top + (9 + 12 * seam.row) * ratio];
        ctx.strokeStyle = ground; // around the letters, which lines may run through
        ctx.lineWidth = 3 * ratio;
        ctx.setLineDash([]);
        ctx.strokeText(...place);
        ctx.fillText(...place);
      }
      ctx.setLineDash([]);
      ctx.globalAlpha = 1;
      for (const line of this.data.lines) {
        if (this.hidden.has(line.name)) continue;
        for (const mark of line.marks) {
          ctx.strokeStyle = ctx.fillStyle = mark.kind === '≤ 0' ? '#7a7f87' : NOT_FINITE;
          ctx.lineWidth = 1.6 * ratio;
          const y = mark.up ? bbox.top + 6 * ratio : bbox.top + bbox.height - 6 * ratio, r = 3.5 * ratio;
          for (const at of mark.x) {
            const place = u.valToPos(at, 'x', true), right = bbox.left + bbox.width;
            if (place < bbox.left - r || place > right + r) continue;
            const x = Math.min(Math.max(place, bbox.left + r), right - r); // whole at the edges, too
            ctx.beginPath();
            if (mark.kind === 'NaN') { ctx.moveTo(x - r, y - r); ctx.lineTo(x + r, y + r); ctx.moveTo(x + r, y - r); ctx.lineTo(x - r, y + r); ctx.stroke(); }
            else { const d = mark.up ? -r : r; ctx.moveTo(x - r, y - d); ctx.lineTo(x + r, y - d); ctx.lineTo(x, y + d); ctx.closePath(); ctx.fill(); }
          }
        }
      }
      ctx.restore();
    }

    // ---- what a person does ----------------------------------------------------------------------------

    listen() {
      const over = this.plot.over;
      over.addEventListener('dblclick', () => { clearTimeout(this.picking); this.board.zoom(null); });
      over.addEventListener('mouseleave', () => this.board.move(null, -10));
      let from = null, touch = false, tapped = null;
      over.addEventListener('pointerdown', (event) => { from = [event.clientX, event.clientY]; touch = event.pointerType === 'touch'; });
      over.addEventListener('click', (event) => {
        if (!from || Math.hypot(event.clientX - from[0], event.clientY - from[1]) >= 5) return;
        const again = tapped !== null && Math.abs(event.clientX - tapped) < 16;
        tapped = touch ? event.clientX : null;
        if (touch) { if (again) this.pick(); return; } // a finger's first tap shows the values
        clearTimeout(this.picking); // a double click shows the whole run, and no batch
        const near = this.near();
        if (event.detail < 2) this.picking = setTimeout(() => this.pick(near), DOUBLE_CLICK);
      });
      over.addEventListener('mousemove', (event) => { if (event.movementX || event.movementY) this.board.walked = null; });
      over.addEventListener('pointermove', (event) => { // a finger that moves sideways moves the cursor
        if (event.pointerType !== 'touch') return;
        const left = event.clientX - over.getBoundingClientRect().left;
        this.plot.setCursor({ left, top: 10 });
      });
    }

    selected(u) {
      const { left, width } = u.select;
      if (width >= 4) this.board.zoom([u.posToVal(left, 'x'), u.posToVal(left + width, 'x')]);
      u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    }

    at() { // the x of the cursor; the middle where there is none
      const left = this.plot.cursor.left;
      return left >= 0 ? this.plot.posToVal(left, 'x') : null;
    }

    nearest() { // of each visible line the point next to the cursor: [{line, index, distance}]
      const x = this.at();
      if (x === null) return [];
      const here = this.plot.valToPos(x, 'x');
      const found = [];
      for (const line of this.data.lines) {
        if (this.hidden.has(line.name) || !line.x.length) continue;
        let low = 0, high = line.x.length - 1;
        while (low < high) { const mid = (low + high) >> 1; if (line.x[mid] < x) low = mid + 1; else high = mid; }
        if (low > 0 && x - line.x[low - 1] < line.x[low] - x) low -= 1;
        if (!Number.isFinite(line.y[low])) { // the gap that a NaN leaves stands before a point
          if (low + 1 < line.x.length && Number.isFinite(line.y[low + 1])) low += 1;
          else if (low > 0) low -= 1;
        }
        const distance = Math.abs(this.plot.valToPos(line.x[low], 'x') - here);
        if (distance <= NEAR) found.push({ line, index: low, distance });
      }
      return found;
    }

    // Of many lines only the one that is nearest to the pointer is told, with its band.
    told() {
      const found = this.nearest(), many = found.filter(ofMany);
      if (many.length < 2) return found;
      const away = ({ line, index }) => Math.abs(this.plot.valToPos(line.y[index], 'y') - this.plot.cursor.top);
      const one = many.reduce((best, next) => (away(next) < away(best) ? next : best));
      const beside = ({ line }) => !many.some(ofTable) || line.name.startsWith(`${one.line.name}, `);
      return [one, ...found.filter((any) => !ofMany(any) && beside(any))];
    }

    showTip() {
      const found = this.told();
      const pointed = this.hasRows() ? found.find(ofMany)?.line.name ?? null : null;
      if (pointed !== this.pointed) point(this.pointed = pointed);
      this.tip.replaceChildren();
      this.tip.hidden = !found.length;
      if (!found.length) return;
      const first = found.reduce((best, one) => (one.distance < best.distance ? one : best));
      const head = first.line.x[first.index];
      element('div', 'lk-of', this.tip).textContent = this.data.title; // which it may cover
      element('b', '', element('div', '', this.tip)).textContent = this.board.place(head, true);
      const words = [this.board.place(head, true)];
      for (const { line, index } of found) {
        const row = element('div', '', this.tip);
        swatch(line, row);
        const own = line.x[index] === head ? '' : ` (${this.board.place(line.x[index], true)})`;
        const name = line.style === 'edge' && pointed ? line.name.slice(pointed.length + 2) : line.name; // lowest, highest
        const told = `${name} ${number(line.y[index], this.data.unit)}${own}`;
        row.append(told);
        words.push(told);
      }
      for (const line of this.data.lines) for (const mark of line.marks) {
        const near = Array.from(mark.x).find((x) => Math.abs(this.plot.valToPos(x, 'x') - this.plot.cursor.left) < 5);
        if (near === undefined) continue;
        element('div', '', this.tip).textContent = `${line.name}: ${mark.kind} at ${this.board.place(near, true)}`;
      }
      for (const seam of this.board.data.seams)
        if (Math.abs(this.plot.valToPos(seam.x, 'x') - this.plot.cursor.left) < 5) element('div', 'lk-note', this.tip).textContent = seam.label;
      if (this.board.data.pick && this.data.lines.some((line) => line.pick)) {
        const how = matchMedia('(hover: none)').matches ? 'Tap again' : 'Click or Enter';
        element('div', 'lk-hint', this.tip).textContent = `${how}: ${this.board.data.pick}`;
      }
      // Above the plot, or below it where the window ends: in neither place does it cover a curve.
      const { over, cursor } = this.plot, { offsetWidth: width, offsetHeight: height } = this.tip;
      const left = over.offsetLeft + cursor.left - width / 2, room = this.draw.clientWidth - width;
      const isSeen = over.getBoundingClientRect().top - height > TOP_BAR;
      this.tip.style.left = `${Math.max(0, Math.min(left, room))}px`; // in narrow charts, too
      this.tip.style.top = `${over.offsetTop + (isSeen ? -height : over.offsetHeight)}px`;
      this.words = words.join(', ');
    }

    near() { // the mark next to the cursor, otherwise the point, of lines that can be picked
      const lines = this.data.lines.filter((line) => line.pick && !this.hidden.has(line.name));
      const away = (x) => Math.abs(this.plot.valToPos(x, 'x') - this.plot.cursor.left);
      const marks = lines.flatMap((line) => line.marks.flatMap((mark) => Array.from(mark.x, (x) => ({ line, x, distance: away(x) }))))
        .filter((mark) => mark.distance <= NEAR_MARK);
      const points = this.nearest().filter(({ line }) => line.pick)
        .map(({ line, index, distance }) => ({ line, x: line.x[index], y: line.y[index], distance }));
      return (marks.length ? marks : points).reduce((best, one) => (one.distance < (best?.distance ?? Infinity) ? one : best), null);
    }

    pick(near = this.near(), walked = false) {
      if (!this.board.data.pick || !near) return;
      const { line, x, y = null } = near;
      this.board.walked = x;
      const time = Date.now(); // the same point may be picked again
      this.board.trigger('picked', { chart: this.key, line: line.name, x, y, walked, time });
    }

    keepCursor() { // of all charts, where the keys or a pick have left it, whatever the zoom and the width
      const left = this.board.walked == null ? null : this.plot.valToPos(this.board.walked, 'x');
      if (left !== null && Math.abs(left - this.plot.cursor.left) > 1) this.plot.setCursor({ left, top: Math.max(10, this.plot.cursor.top) });
    }

    press(event) {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.target !== this.root && event.key === 'Enter') return; // a button has the focus
      const step = event.shiftKey ? 10 : 1;
      const keys = {
        ArrowLeft: () => this.walk(-step), ArrowRight: () => this.walk(step),
        '+': () => this.board.scale(0.5, this.at()), '=': () => this.board.scale(0.5, this.at()),
        '-': () => this.board.scale(2, this.at()), 0: () => this.board.zoom(null), Escape: () => this.board.zoom(null),
        f: () => this.full(), s: () => this.save(), j: nextJump, Enter: () => this.pick(),
        ...this.hasRows() && { ArrowUp: () => this.climb(-1), ArrowDown: () => this.climb(1) },
      };
      const act = keys[event.key] || keys[event.key.toLowerCase()];
      if (!act || (event.key === 'Escape' && document.fullscreenElement)) return;
      event.preventDefault();
      event.stopPropagation(); // Streamlit has short cuts of its own
      act();
    }

    walk(points) { // move the cursor by points of the line that has most of them
      const line = this.data.lines.filter((one) => !this.hidden.has(one.name)).reduce((best, one) => (one.x.length > (best?.x.length ?? 0) ? one : best), null);
      if (!line) return;
      const [low, high] = this.board.shown();
      const inside = Array.from(line.x.keys()).filter((i) => line.x[i] >= low && line.x[i] <= high);
      if (!inside.length) return;
      const open = this.board.data.seams.find((seam) => seam.strong), x = this.board.walked ?? open?.x ?? this.at();
      let now = x === null ? (points > 0 ? -1 : inside.length) : inside.findIndex((i) => line.x[i] >= x - 1e-9);
      if (now < 0) now = x === null ? -1 : inside.length - 1;
      const next = inside[Math.min(inside.length - 1, Math.max(0, now + points))];
      this.board.walked = line.x[next];
      this.keepCursor();
      this.said.textContent = this.words || '';
      clearTimeout(this.picking);
      if (open) this.picking = setTimeout(() => this.pick(this.near(), true), STANDS);
    }

    climb(by) { // move the cursor to the next curve above or below it
      const top = ({ line, index }) => this.plot.valToPos(line.y[index], 'y');
      const now = this.told().find(ofMany);
      const next = this.nearest().filter(ofMany).map((one) => by * (top(one) - top(now))).filter((away) => away > 0.5);
      if (next.length) this.plot.setCursor({ left: this.plot.cursor.left, top: top(now) + by * Math.min(...next) });
      this.said.textContent = this.words || '';
    }

    full() {
      if (document.fullscreenElement) document.exitFullscreen();
      else this.root.requestFullscreen?.();
    }

    save() { // at twice the size, named for the run and the chart
      const scale = 2, u = this.plot, ratio = uPlot.pxRatio;
      const canvas = element('canvas'), ctx = canvas.getContext('2d');
      ctx.font = '11px sans-serif';
      let left = 8, row = 0;
      const names = this.data.lines.filter((one) => (counted(one) || ofTable({ line: one })) && !this.hidden.has(one.name)).map((line) => {
        const width = 42 + ctx.measureText(line.name).width;
        if (left > 8 && left + width > u.width) [left, row] = [8, row + 1];
        left += width;
        return { line, x: left - width, y: 34 + 16 * row };
      });
      const head = 44 + 16 * row;
      canvas.width = u.width * scale;
      canvas.height = (u.height + head) * scale;
      const style = getComputedStyle(this.root);
      ctx.scale(scale, scale);
      ctx.fillStyle = style.backgroundColor;
      ctx.fillRect(0, 0, u.width, u.height + head);
      ctx.fillStyle = style.color;
      ctx.font = '600 13px sans-serif';
      ctx.fillText(`${this.board.data.name} · ${this.data.title}`, 8, 16);
      ctx.font = '11px sans-serif';
      for (const { line, x, y } of names) {
        ctx.strokeStyle = line.color; ctx.lineWidth = 2.5; ctx.setLineDash(dashed(line));
        ctx.beginPath(); ctx.moveTo(x, y - 3.5); ctx.lineTo(x + 24, y - 3.5); ctx.stroke();
        ctx.fillText(line.name, x + 28, y);
      }
      // uPlot draws at the screen's resolution. For twice as many pixels a second plot is drawn, out of sight.
      const out = element('div', '', this.root);
      out.style.cssText = 'position:absolute;left:-9999px;visibility:hidden';
      const big = this.options();
      const grow = (font) => font.replace(/(\d+)px/, (all, n) => n * scale / ratio + 'px');
      Object.assign(big, { width: u.width * scale / ratio, height: u.height * scale / ratio, hooks: { draw: [(plot) => this.decorate(plot)] } });
      big.axes.forEach((axis) => { axis.font = grow(axis.font); if (axis.labelFont) { axis.labelFont = grow(axis.labelFont); axis.labelSize *= scale / ratio; }
        const size = axis.size; axis.size = typeof size === 'function' ? (...given) => size(...given) * scale / ratio : size * scale / ratio; axis.space *= scale / ratio; });
      big.series.forEach((one) => { if (one.width) one.width *= scale / ratio; if (one.dash) one.dash = one.dash.map((n) => n * scale / ratio); });
      new uPlot(big, u.data, (plot, ready) => {
        out.appendChild(plot.root);
        ready();
        setTimeout(() => {
          ctx.drawImage(plot.ctx.canvas, 0, head, u.width, u.height);
          plot.destroy();
          out.remove();
          const link = element('a');
          link.download = `${this.board.data.name}-${this.data.title}.png`.replace(/[^\w.-]+/g, '-').replace(/^[.-]+/, '');
          link.href = canvas.toDataURL('image/png');
          link.click();
        });
      });
    }

    leave() {
      this.sizes.disconnect();
      document.removeEventListener('fullscreenchange', this.onFull);
      document.removeEventListener(POINTED, this.onPointed);
      this.plot?.destroy();
      this.root.remove();
    }
  }

  // ---- the board -----------------------------------------------------------------------------------------

  class Board {
    constructor(parent) {
      this.root = element('div', 'lk-board', parent);
      this.bar = element('div', 'lk-bar', this.root);
      this.range = element('span', '', this.bar);
      const reset = element('button', '', this.bar);
      reset.type = 'button';
      reset.textContent = 'Show the whole run';
      reset.addEventListener('click', () => this.zoom(null));
      this.charts = new Map();
      this.wanted = undefined; // the zoom that the person made and the server hasn't answered yet
      this.columns = new ResizeObserver(() => this.fill());
      this.columns.observe(this.root);
      this.themes = setInterval(() => this.followTheme(), 700);
    }

    has(bytes) { // whether these are the ones that are drawn already: a refresh often changes nothing
      const old = this.bytes;
      const equal = this.wanted === undefined && old?.length === bytes.length && old.every((value, i) => value === bytes[i]);
      this.bytes = bytes;
      return equal;
    }

    update(data) {
      const answered = this.wanted !== undefined && same(this.wanted, data.window);
      if (answered || Date.now() - this.asked > WAIT_FOR_SERVER) this.wanted = undefined;
      this.data = data;
      this.root.dataset.size = data.size;
      const keys = new Set(data.charts.map((chart) => chart.key));
      for (const [key, chart] of this.charts) if (!keys.has(key)) { chart.leave(); this.charts.delete(key); }
      for (const one of data.charts) {
        if (!this.charts.has(one.key)) this.charts.set(one.key, new Chart(this, one.key));
        const chart = this.charts.get(one.key);
        chart.update(one);
      }
      const order = data.charts.map((one) => one.key).join('\n');
      if (order !== this.order) this.root.append(...data.charts.map((one) => this.charts.get(one.key).root));
      this.order = order;
      this.fill();
      this.showRange();
    }

    fill() { // a chart that is alone in the last row is as wide as the row
      const columns = getComputedStyle(this.root).gridTemplateColumns.split(' ').length, last = (this.data?.charts.length ?? 0) - 1;
      this.data?.charts.forEach(({ key }, at) => this.charts.get(key).root.classList.toggle('lk-alone', at > 0 && at === last && at % columns === 0));
    }

    place(x, long) { // a position of the horizontal axis in words
      if (this.data.axis === 'name') {
        const name = Number.isInteger(x) ? this.data.ticks[x] ?? '' : '';
        return long || name.length <= LONGEST_NAME ? name : `${name.slice(0, 8)}…${name.slice(9 - LONGEST_NAME)}`;
      }
      return place(x, this.data.axis, long);
    }

    window() { return this.wanted !== undefined ? this.wanted : this.data.window; }

    shown() { return ends(this.window() || this.data.extent, this.data.axis === 'clock' ? 30 : 1); } // seconds; or one step, one epoch

    showRange() {
      const window = this.window();
      this.bar.style.display = window ? '' : 'none';
      if (window) this.range.textContent = `Zoom: ${this.place(rounded(window[0], this.data.axis), true)} to ${this.place(rounded(window[1], this.data.axis), true)}`;
    }

    zoom(window) {
      if (!this.data.extent) return;
      if (window) {
        const [low, high] = this.data.extent;
        window = [Math.max(window[0], low), Math.min(window[1], high)];
        const least = whole(this.data.axis) ? 1 : Math.max((high - low) * 1e-7, 2 * CLOSE * Math.abs(high));
        if (!(window[1] - window[0] >= least)) return;
        if (window[0] <= low && window[1] >= high) window = null;
      }
      if (same(window, this.window())) return;
      this.wanted = window;
      this.asked = Date.now();
      for (const chart of this.charts.values()) chart.rescale();
      this.showRange();
      this.send('window', window || []); // Streamlit takes null for no change
    }

    scale(factor, centre) {
      const [low, high] = this.shown(), middle = centre ?? (low + high) / 2;
      this.zoom([middle - (middle - low) * factor, middle + (high - middle) * factor]);
    }

    move(from, left) { // the cursor of all charts
      this.moving = true;
      const x = from && left >= 0 ? from.plot.posToVal(left, 'x') : null;
      for (const chart of this.charts.values()) {
        if (chart !== from) chart.plot.setCursor({ left: x === null ? -10 : chart.plot.valToPos(x, 'x'), top: -10 });
        chart.showTip();
      }
      this.moving = false;
    }

    followTheme() {
      const now = getComputedStyle(this.root).color + getComputedStyle(this.root).getPropertyValue('--st-border-color');
      if (this.theme && now !== this.theme) for (const chart of this.charts.values()) chart.plot?.redraw(false, true);
      this.theme = now;
    }

    leave() {
      clearInterval(this.themes);
      this.columns.disconnect();
      for (const chart of this.charts.values()) chart.leave();
      this.root.remove();
    }
  }

  // Opens the next of the largest jumps of the loss that the drawer lists, or the first where it is closed.
  function nextJump() {
    const jumps = [...document.querySelectorAll('.st-key-batch-jumps button')];
    const shown = jumps.findIndex((button) => button.disabled);
    (jumps[(shown + 1) % jumps.length] ?? document.querySelector('.st-key-largest-jump button'))?.click();
  }

  const same = (one, other) => JSON.stringify(one ?? null) === JSON.stringify(other ?? null);
  const whole = (axis) => ['step', 'name', 'count'].includes(axis); // has places at whole numbers only
  const rounded = (x, axis) => (whole(axis) ? Math.round(x) : x);

  const byIdent = new Map(); // the boards whose newest state the page fetches (feed.js)

  globalThis.labkitBoard = {
    byIdent,
    nextJump,
    render(parent, bytes, send, trigger) {
      const board = parent.labkitBoard ||= new Board(parent);
      board.send = send;
      board.trigger = trigger;
      board.version = '';
      board.drawn = performance.now();
      if (bytes && !board.has(bytes)) board.update(decode(bytes));
      if (board.data?.ident) byIdent.set(board.data.ident, board);
    },
    fetched(board, bytes, version) {
      board.version = version;
      if (!board.has(bytes)) board.update(decode(bytes));
    },
    leave(parent) {
      setTimeout(() => { // Streamlit also calls this between two updates
        if (parent.isConnected || !parent.labkitBoard) return;
        if (byIdent.get(parent.labkitBoard.data?.ident) === parent.labkitBoard) byIdent.delete(parent.labkitBoard.data.ident);
        parent.labkitBoard.leave();
        delete parent.labkitBoard;
      });
    },
  };
})();
export default function () {}
