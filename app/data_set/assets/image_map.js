// A map of images: points on a canvas, a thumbnail under the pointer, and a part that is drawn around points.
// The function is called for each new map and reuses the host element.
export default function ({ data, parentElement, setStateValue }) {
  let host = parentElement.querySelector('.lk-map');
  if (!host) {
    host = document.createElement('div');
    host.className = 'lk-map';
    host.innerHTML = '<canvas></canvas><div class="lk-map-tip" hidden><canvas></canvas><span></span></div>';
    parentElement.appendChild(host);
  }
  const canvas = host.querySelector('canvas'), tip = host.querySelector('.lk-map-tip');
  const thumb = tip.querySelector('canvas'), words = tip.querySelector('span');
  const { x, y, kind, colors, shapes, order, tile, columns } = data;
  canvas.setAttribute('role', 'img');
  canvas.setAttribute('aria-label', data.label);
  if (host.version !== data.version) {
    host.version = data.version;
    host.around = null;
    host.picked = [];
    host.sprite = new Image();
    host.sprite.src = data.sprite;
  }
  const view = () => {
    const width = host.clientWidth || 600, height = Math.max(300, Math.min(width * 0.72, 560));
    return { width, height, pad: 14 };
  };
  const at = (point) => {
    const { width, height, pad } = view();
    const [left, top, right, bottom] = data.extent;
    return [pad + (x[point] - left) / (right - left) * (width - 2 * pad),
            pad + (y[point] - top) / (bottom - top) * (height - 2 * pad)];
  };
  const mark = (pen, shape, px, py, r) => {
    pen.beginPath();
    if (shape === 'circle' || shape === 'ring') pen.arc(px, py, r, 0, 7);
    else if (shape === 'square') pen.rect(px - r * 0.88, py - r * 0.88, r * 1.76, r * 1.76);
    else if (shape === 'cross') {
      pen.moveTo(px - r, py - r); pen.lineTo(px + r, py + r); pen.moveTo(px - r, py + r); pen.lineTo(px + r, py - r);
    } else if (shape === 'plus') {
      pen.moveTo(px - r, py); pen.lineTo(px + r, py); pen.moveTo(px, py - r); pen.lineTo(px, py + r);
    } else {
      const turns = { up: [3, -90], down: [3, 90], diamond: [4, 0], right: [3, 0], left: [3, 180] }[shape];
      const [corners, first] = turns;
      for (let corner = 0; corner < corners; corner++) {
        const angle = (first + corner * 360 / corners) * Math.PI / 180;
        pen.lineTo(px + 1.2 * r * Math.cos(angle), py + 1.2 * r * Math.sin(angle));
      }
      pen.closePath();
    }
    if (['ring', 'cross', 'plus'].includes(shape)) pen.stroke(); else pen.fill();
  };
  const draw = () => {
    const { width, height } = view(), scale = devicePixelRatio || 1;
    canvas.width = width * scale; canvas.height = height * scale;
    canvas.style.height = height + 'px';
    const pen = canvas.getContext('2d');
    pen.scale(scale, scale);
    pen.lineWidth = 1.8;
    const radius = x.length > 800 ? 3.6 : 4.6;
    const chosen = new Set(host.picked || []), some = chosen.size > 0;
    for (const point of order) {
      const [px, py] = at(point), color = colors[kind[point]];
      pen.globalAlpha = some && !chosen.has(point) ? 0.18 : data.faint[kind[point]] ? 0.16 : 0.9;
      pen.fillStyle = pen.strokeStyle = color;
      mark(pen, shapes[kind[point]], px, py, radius);
    }
    pen.globalAlpha = 1;
    if (host.around && host.around.length > 1) {
      pen.beginPath();
      host.around.forEach(([px, py], place) => (place ? pen.lineTo(px, py) : pen.moveTo(px, py)));
      pen.closePath();
      pen.strokeStyle = getComputedStyle(host).color;
      pen.setLineDash([5, 4]); pen.lineWidth = 1.5; pen.stroke(); pen.setLineDash([]);
      pen.globalAlpha = 0.08; pen.fillStyle = getComputedStyle(host).color; pen.fill(); pen.globalAlpha = 1;
    }
  };
  const place = (event) => {
    const box = canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  const nearest = ([px, py]) => {
    let best = -1, distance = 12 * 12;
    for (let point = 0; point < x.length; point++) {
      const [qx, qy] = at(point), d = (qx - px) ** 2 + (qy - py) ** 2;
      if (d < distance) { best = point; distance = d; }
    }
    return best;
  };
  const inside = ([px, py], line) => {
    let within = false;
    for (let i = 0, j = line.length - 1; i < line.length; j = i++) {
      const [ax, ay] = line[i], [bx, by] = line[j];
      if ((ay > py) !== (by > py) && px < (bx - ax) * (py - ay) / (by - ay) + ax) within = !within;
    }
    return within;
  };
  const hover = (event) => {
    const spot = place(event), point = nearest(spot);
    tip.hidden = point < 0;
    if (point < 0) return;
    const pen = thumb.getContext('2d');
    thumb.width = thumb.height = 96;
    pen.imageSmoothingEnabled = false;
    if (host.sprite.complete && host.sprite.naturalWidth) {
      const [w, h] = tile, across = point % columns, down = Math.floor(point / columns);
      pen.drawImage(host.sprite, across * w, down * h, w, h, 0, 0, 96, 96);
    }
    words.textContent = data.tips[point];
    const { width } = view();
    tip.style.left = Math.max(0, Math.min(spot[0] + 14, width - 170)) + 'px';
    tip.style.top = Math.max(0, spot[1] - (spot[1] > 150 ? 150 : -14)) + 'px';
  };
  const report = (picked) => {
    host.picked = picked;
    draw();
    setStateValue('picked', { points: picked, version: data.version });
  };
  canvas.onpointerdown = (event) => {
    if (event.button) return;
    host.ended = false;
    host.around = [place(event)];
    host.corner = event.shiftKey ? host.around[0] : null;
    canvas.setPointerCapture(event.pointerId);
    tip.hidden = true;
  };
  canvas.onpointermove = (event) => {
    if (!event.buttons || !host.around || host.ended) { hover(event); return; }
    const spot = place(event);
    if (host.corner) {
      const [ax, ay] = host.corner;
      host.around = [[ax, ay], [spot[0], ay], spot, [ax, spot[1]]];
    } else host.around.push(spot);
    draw();
  };
  canvas.onpointerup = (event) => {
    if (!host.around || host.ended) return;
    host.ended = true;
    if (host.around.length < 3) {
      const point = nearest(place(event));
      host.around = null;
      report(point < 0 ? [] : [point]);
      return;
    }
    report(x.map((_, point) => point).filter((point) => inside(at(point), host.around)));
  };
  canvas.onpointercancel = () => { host.around = null; host.ended = true; draw(); };
  canvas.onpointerleave = () => { tip.hidden = true; };
  draw();
  const watcher = new ResizeObserver(draw);
  watcher.observe(host);
  return () => watcher.disconnect();
}
