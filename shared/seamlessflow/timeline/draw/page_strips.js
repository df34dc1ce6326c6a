// D: {length, zero: seconds before it, kinds: [[name, words, place in a pile, whether it occurs]], rollout: its index,
//     most: in flight on a full node, colours: {light, dark}, groups: [[name, count, busy]],
//     nodes: [{n: name, b: busy, o: where it begins, s: [kind, milliseconds, reason, epoch, busy percent, ...],
//              f: in flight {s: start, w: width, v: base64 of bytes, 255 for most}}],
//     reasons: [...], queued and flight: {s, w, v}, steps: [[step, time, mean, oldest, version]], versions: [[time, version]]}
const LEFT = 150, RIGHT = 64, LABELLED = 9, FLEET = D.nodes.length > 12 ? 74 : 0, $ = id => document.getElementById(id);
const chart = $("chart"), under = $("under"), tip = $("tip");
let from = 0, to = D.length, cursor = null, shade = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
let rowHeight = Math.max(Math.min(26, 640 / D.nodes.length), Math.min(1, 9000 / D.nodes.length));
const ratio = Math.max(1, window.devicePixelRatio || 1);

for (const node of D.nodes) {               // spans lie one behind the other; [start, end] in seconds
  const count = node.s.length / 5;
  node.end = new Float64Array(count); node.begin = new Float64Array(count);
  let at = node.o;
  for (let i = 0; i < count; i++) { node.begin[i] = at / 1000; at += node.s[5 * i + 1]; node.end[i] = at / 1000; }
  if (node.f) {
    const raw = Uint8Array.from(atob(node.f.v), c => c.charCodeAt(0));
    node.f.sums = new Float64Array(raw.length + 1);
    for (let i = 0; i < raw.length; i++) node.f.sums[i + 1] = node.f.sums[i] + raw[i] / 255 * D.most;
  }
}
const rgb = text => [1, 3, 5].map(at => parseInt(text.slice(at, at + 2), 16));
const css = name => D.colours[shade][name];
function sumTo(f, time) {                    // of a profile, from its start
  const at = Math.min(Math.max((time - f.s) / f.w, 0), f.sums.length - 1), low = Math.floor(at);
  return f.sums[low] + (low + 1 < f.sums.length ? (f.sums[low + 1] - f.sums[low]) * (at - low) : 0);
}
const mean = (f, a, b) => b > a ? (sumTo(f, b) - sumTo(f, a)) / ((b - a) / f.w) : 0;
function firstAt(node, time) {               // the first span that ends behind a moment
  let low = 0, high = node.end.length;
  while (low < high) { const mid = (low + high) >> 1; if (node.end[mid] > time) high = mid; else low = mid + 1; }
  return low;
}

function widthOf(canvas) { return Math.max(canvas.clientWidth - LEFT - RIGHT, 50); }
function prepare(canvas, height) {
  canvas.style.height = height + "px";
  canvas.width = Math.round(canvas.clientWidth * ratio); canvas.height = Math.round(height * ratio);
  const g = canvas.getContext("2d");
  g.setTransform(ratio, 0, 0, ratio, 0, 0); g.font = "12px system-ui, sans-serif"; g.textBaseline = "middle";
  return g;
}
const top0 = () => (FLEET ? FLEET + 30 : 0) + 22;
const xOf = (time, width) => LEFT + (time - from) / (to - from) * width;

// Shares of each kind in each column: what the strip of one node, or the mean of several, is coloured by.
function strip(nodes, columns, shares, dark) {
  shares.fill(0); dark.fill(0);
  const K = D.kinds.length, per = columns / (to - from), part = 1 / nodes.length;
  for (const node of nodes) {
    for (let i = firstAt(node, from); i < node.end.length && node.begin[i] < to; i++) {
      const kind = node.s[5 * i], a = Math.max(0, (node.begin[i] - from) * per), b = Math.min(columns, (node.end[i] - from) * per);
      for (let c = Math.floor(a); c < b; c++) {
        const share = part * (Math.min(b, c + 1) - Math.max(a, c));
        shares[c * K + kind] += share;
        if (kind === D.rollout)
          dark[c] += share * (node.f ? Math.min(1, mean(node.f, from + c / per, from + (c + 1) / per) / D.most) : 1);
      }
    }
  }
}
function paint(shares, dark, columns, pixels, offset) {
  const K = D.kinds.length, colours = D.kinds.map(([name]) => rgb(css(name))), few = rgb(css("few")), many = rgb(css("rollout"));
  const nobody = rgb(css("away"));
  for (let c = 0; c < columns; c++) {
    let red = 0, green = 0, blue = 0, all = 0;
    for (let k = 0; k < K; k++) {
      const share = shares[c * K + k];
      if (!share) continue;
      all += share;
      let colour = colours[k];
      if (k === D.rollout) { const level = dark[c] / share; colour = [0, 1, 2].map(x => few[x] + (many[x] - few[x]) * level); }
      red += share * colour[0]; green += share * colour[1]; blue += share * colour[2];
    }
    const rest = Math.max(0, 1 - all), at = offset + 4 * c;
    pixels[at] = red + rest * nobody[0]; pixels[at + 1] = green + rest * nobody[1]; pixels[at + 2] = blue + rest * nobody[2]; pixels[at + 3] = 255;
  }
}

function draw() {
  document.body.style.background = css("page");
  for (const name of ["page", "text", "faint", "rule"]) document.documentElement.style.setProperty("--" + name, css(name));
  const count = D.nodes.length, height = top0() + count * rowHeight + 6, g = prepare(chart, height), width = widthOf(chart);
  const columns = Math.round(width * ratio), rows = Math.round(count * rowHeight * ratio), K = D.kinds.length;
  const image = g.createImageData(columns, Math.max(rows, 1)), pixels = image.data;
  const shares = new Float64Array(columns * K), dark = new Float64Array(columns), fleet = new Float64Array(columns * K);
  const gap = rowHeight >= 7 ? Math.round(Math.min(2, rowHeight / 7) * ratio) : 0;
  for (let line = 0; line < rows;) {          // a line: a node's rows of pixels, or the nodes of one row of pixels
    const first = Math.min(count - 1, Math.floor(line / rowHeight / ratio + 1e-6));
    const last = Math.max(first + 1, Math.min(count, Math.floor((line + 1) / rowHeight / ratio + 1e-6)));
    const next = Math.max(line + 1, Math.min(rows, Math.round((first + 1) * rowHeight * ratio)));
    const nodes = D.nodes.slice(first, last);
    strip(nodes, columns, shares, dark);
    if (FLEET) for (let i = 0; i < fleet.length; i++) fleet[i] += shares[i] * nodes.length / count;
    const begin = line * columns * 4;
    paint(shares, dark, columns, pixels, begin);
    for (let y = line + 1; y < next - gap; y++) pixels.copyWithin(y * columns * 4, begin, begin + columns * 4);
    line = next;
  }
  g.putImageData(image, Math.round(LEFT * ratio), Math.round(top0() * ratio));
  if (FLEET) drawFleet(g, fleet, columns);
  drawLabels(g, width, count);
  drawUnder();
}
function drawFleet(g, fleet, columns) {
  const K = D.kinds.length, order = [...D.kinds.keys()].sort((a, b) => D.kinds[b][2] - D.kinds[a][2]);
  const y0 = 20, h = FLEET, image = g.createImageData(columns, Math.round(h * ratio)), tall = image.height;
  const colours = D.kinds.map(([name]) => rgb(css(name)));
  for (let c = 0; c < columns; c++) {
    let level = tall;
    for (const k of order) {
      const until = level - fleet[c * K + k] * tall;
      for (let y = Math.max(0, Math.round(until)); y < Math.round(level); y++) image.data.set([...colours[k], 255], 4 * (y * columns + c));
      level = until;
    }
  }
  g.putImageData(image, Math.round(LEFT * ratio), Math.round(y0 * ratio));
  g.fillStyle = css("text"); g.textAlign = "left"; g.fillText("share of nodes", LEFT, 9);
  g.fillStyle = css("faint"); g.textAlign = "right";
  g.fillText("100 %", LEFT - 8, y0 + 5); g.fillText("0", LEFT - 8, y0 + h - 5);
}
