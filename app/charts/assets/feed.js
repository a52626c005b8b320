/* Fetches what changes all the time on a page (app/feed.py): the figures at its head and its boards. The answer waits for news. */
const BREATH = 100; // ms between an answer that came late and the next question
const PATIENCE = 3000; // ms; the boards of a page that was just drawn may still be missing

class Feed {
  constructor(parent) {
    this.parent = parent;
    this.seen = () => { if (!document.hidden) this.ask(); };
    document.addEventListener('visibilitychange', this.seen);
  }

  follow({ address, seconds }, redraw) {
    const below = location.pathname.replace(/\/+$/, '').replace(/[^/]*$/, ''); // the dashboard may have a path of its own
    this.url = new URL(below + address, location.origin);
    this.least = this.wait = seconds * 1000;
    this.redraw = redraw;
    this.drawn = performance.now();
    this.html = null; // Streamlit may have drawn other figures
    this.later();
  }

  later() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.ask(), this.wait);
  }

  async ask() {
    clearTimeout(this.timer);
    if (!this.parent.isConnected) { document.removeEventListener('visibilitychange', this.seen); return; }
    if (document.hidden || this.asking) return; // until the page is seen again
    this.asking = true;
    const asked = performance.now();
    try {
      const boards = globalThis.labkitBoard?.byIdent.values() ?? []; // other pages of a run have none
      this.url.search = 'have=' + [...boards].map((board) => board.version).filter(Boolean).join(',');
      const reply = await fetch(this.url, { cache: 'no-store' });
      if (!reply.ok) this.redraw();
      else this.show(new Uint8Array(await reply.arrayBuffer()), asked);
    } catch (error) { // the server can't be reached, and Streamlit says so
    }
    this.asking = false;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.ask(), Math.max(BREATH, this.wait - (performance.now() - asked)));
  }

  show(bytes, asked) {
    const length = new DataView(bytes.buffer).getUint32(0, true);
    const { html, stale, seconds, boards } = JSON.parse(new TextDecoder().decode(bytes.subarray(4, 4 + length)));
    this.wait = Math.max(this.least, seconds * 1000);
    if (stale) { this.redraw(); return; }
    if (this.drawn > asked || !this.parent.isConnected) return; // the page shows something newer
    const figures = document.querySelector('.lk-live');
    if (figures && this.html !== html) figures.innerHTML = this.html = html;
    const progress = figures?.querySelector('[aria-valuenow]'); // the tab says how far the run is
    const percent = progress && Math.floor(100 * progress.ariaValueNow / progress.ariaValueMax);
    if (Number.isFinite(percent)) document.title = document.title.replace(/^(\d+ % · )?/, `${percent} % · `);
    let start = 4 + length;
    for (const [ident, version, size] of boards) {
      const board = globalThis.labkitBoard.byIdent.get(ident);
      if (board && board.drawn <= asked) globalThis.labkitBoard.fetched(board, bytes.slice(start, start + size), version);
      else if (!board && asked > this.drawn + PATIENCE) this.redraw();
      start += size;
    }
  }
}

export default function ({ data, parentElement, setTriggerValue }) {
  const feed = parentElement.labkitFeed ||= new Feed(parentElement);
  feed.follow(data, () => setTriggerValue('stale', Date.now())); // Streamlit draws the page again
}
