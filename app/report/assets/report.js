/* Draws the boards of a report from the points that are in the file. Nothing is loaded from anywhere. */
(function () {
  async function bytes(text) {
    const packed = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream('gzip'));
    return new Uint8Array(await new Response(stream).arrayBuffer());
  }

  const within = (line, [low, high]) => line.x.reduce((sum, x, i) => sum + (x >= low && x <= high && !Number.isNaN(line.y[i])), 0);

  function count(board) { // how many points the window shows: no server tells it
    const window = board.window();
    for (const chart of board.charts.values()) {
      const lines = chart.data.lines.filter((line) => line.style !== 'faint' && line.style !== 'dashed');
      const all = lines.reduce((sum, line) => sum + line.of, 0), held = lines.reduce((sum, line) => sum + line.y.length, 0);
      const shown = lines.reduce((sum, line) => sum + (window ? within(line, window) : line.y.length), 0);
      const of = !window || held < all ? ` of ${all.toLocaleString('en-US')}` : '';
      chart.points.textContent = `${Math.min(shown, all).toLocaleString('en-US')}${of} points${window && of ? ' of the whole run' : ''}`;
    }
  }

  async function draw(place) {
    let data;
    try {
      data = await bytes(place.nextElementSibling.textContent);
    } catch (error) {
      place.textContent = 'This browser is too old to draw the charts (it has no DecompressionStream).';
      return;
    }
    globalThis.labkitBoard.render(place, data, () => count(place.labkitBoard), () => {});
  }

  const boards = [...document.querySelectorAll('.board')];
  Promise.all(boards.map(draw)).then(() => { document.documentElement.dataset.drawn = 'true'; });

  // Paper is white, has a width of its own, and shows what is folded.
  const PAPER = { width: 480, height: 210 };
  const charts = () => boards.flatMap((place) => [...place.labkitBoard?.charts.values() ?? []]).filter((chart) => chart.plot);
  let folded = [];
  addEventListener('beforeprint', () => {
    document.documentElement.classList.add('paper');
    folded = [...document.querySelectorAll('details:not([open])')];
    folded.forEach((one) => { one.open = true; });
    for (const chart of charts()) {
      chart.plot.setSize(PAPER);
      chart.plot.redraw(false, true);
      queueMicrotask(() => { // after uPlot, which draws in a microtask
        const from = chart.plot.ctx.canvas, copy = document.createElement('canvas');
        [copy.width, copy.height, copy.className] = [from.width, from.height, 'paper-chart'];
        copy.getContext('2d').drawImage(from, 0, 0);
        chart.draw.after(copy);
      });
    }
  });
  addEventListener('afterprint', () => {
    document.documentElement.classList.remove('paper');
    document.querySelectorAll('.paper-chart').forEach((one) => one.remove());
    folded.forEach((one) => { one.open = false; });
    for (const chart of charts()) {
      chart.resize();
      chart.plot.redraw(false, true);
    }
  });
})();
