// Names beside the strips, and the panels under them.
function shownSteps(width) {                  // those with room for their number
  const found = [];
  let last = -1e9;
  for (const step of D.steps) {
    const x = xOf(step[1], width);
    if (x >= LEFT - .5 && x <= LEFT + width + .5) { found.push([step, x, x - last >= 26]); if (x - last >= 26) last = x; }
  }
  return found;
}
function drawLabels(g, width, count) {
  const y0 = top0();
  const steps = shownSteps(width), few = steps.length < width / 6;
  g.textAlign = "center"; g.font = "11px system-ui, sans-serif";
  for (const [step, x, fits] of steps) {
    if (fits) { g.fillStyle = css("faint"); g.fillText(step[0], x, y0 - 10); }
    if (few) { g.fillStyle = css("page"); g.globalAlpha = .7; g.fillRect(x - .5, y0, 1, count * rowHeight); g.globalAlpha = 1; }
  }
  g.fillStyle = css("faint"); g.textAlign = "right";
  if (steps.length) g.fillText("step", LEFT - 8, y0 - 10);
  g.textAlign = "left"; g.fillText("busy", LEFT + width + 8, y0 - 10);
  let at = 0;
  for (const [name, size, busy] of D.groups) {
    const y = y0 + at * rowHeight;
    if (rowHeight < LABELLED) {
      g.font = "12px system-ui, sans-serif"; g.textAlign = "right"; g.fillStyle = css("text");
      const middle = y + Math.min(size * rowHeight / 2, 60);
      if (size * rowHeight > 14) {
        g.fillText(name, LEFT - 8, middle - (size * rowHeight > 30 ? 8 : 0));
        g.fillStyle = css("faint");
        if (size * rowHeight > 30) g.fillText(size.toLocaleString() + " nodes", LEFT - 8, middle + 8);
        g.textAlign = "left"; g.fillText((100 * busy).toFixed(1) + " %", LEFT + width + 8, middle);
      }
    }
    if (at && count > 12) { g.fillStyle = css("text"); g.fillRect(LEFT, y - .5, width, 1); }
    at += size;
  }
  if (rowHeight >= LABELLED) {
    g.font = Math.min(12.5, rowHeight - 1) + "px system-ui, sans-serif";
    D.nodes.forEach((node, place) => {
      const y = y0 + (place + .5) * rowHeight - .5;
      g.fillStyle = css("text"); g.textAlign = "right"; g.fillText(shorten(g, node.n, LEFT - 14), LEFT - 8, y);
      g.fillStyle = css("faint"); g.textAlign = "left"; g.fillText(Math.round(100 * node.b) + " %", LEFT + width + 8, y);
    });
  }
}
function shorten(g, text, room) {
  if (g.measureText(text).width <= room) return text;
  while (text.length > 4 && g.measureText("…" + text).width > room) text = text.slice(1);
  return "…" + text;
}

function drawUnder() {
  const hasLoad = D.queued || D.flight, hasAge = D.steps.some(step => step[3] !== null);
  const g = prepare(under, (hasLoad ? 118 : 0) + (hasAge ? 96 : 0) + 40), width = widthOf(under);
  let y = 34;
  if (hasLoad) {
    const series = [["in flight", D.flight, css("flight")], ["queued", D.queued, css("queued")]].filter(s => s[1]);
    panel(g, y, 86, width, "generations", series.map(([name, s, colour]) => [name, colour]),
      Math.max(1, ...series.map(([, s]) => highest(s))));
    for (const [, s, colour] of series) area(g, s, y, 86, width, colour, Math.max(1, ...series.map(([, s]) => highest(s))));
    y += 118;
  }
  if (hasAge) {
    const known = D.steps.filter(step => step[3] !== null), most = 1.15 * Math.max(1, ...known.map(step => step[3]));
    panel(g, y, 62, width, "staleness of trained tokens, in steps", [["oldest token", css("stale")], ["mean", css("train")]], most);
    clip(g, y - 4, 70, width, () => {
      const place = (step, value) => [xOf(step[1], width), y + 62 - value / most * 62];
      const crowded = known.length * (D.length / (to - from)) > width / 5;
      for (const [index, colour] of [[3, css("stale")], [2, css("train")]]) {
        g.strokeStyle = g.fillStyle = colour; g.lineWidth = 1.4; g.beginPath();
        known.forEach(step => g.lineTo(...place(step, step[index])));
        if (index === 2 || crowded) g.stroke();
        if (!crowded) known.forEach(step => { const [x, yy] = place(step, step[index]); g.beginPath(); g.arc(x, yy, 2.6, 0, 7); index === 2 ? g.fill() : g.stroke(); });
      }
    });
    y += 96;
  }
  axis(g, y - 26, width);
  if (cursor !== null) {
    g.fillStyle = css("faint"); g.fillRect(xOf(cursor, width), 0, 1, y - 26);
  }
}
function highest(s) {
  const a = Math.max(0, Math.floor((from - s.s) / s.w)), b = Math.min(s.v.length, Math.ceil((to - s.s) / s.w));
  let most = 0;
  for (let i = a; i < b; i++) if (s.v[i] > most) most = s.v[i];
  return 1.08 * most;
}
function clip(g, y, h, width, paintIt) { g.save(); g.beginPath(); g.rect(LEFT, y, width, h); g.clip(); paintIt(); g.restore(); }
function panel(g, y, h, width, title, keys, most) {
  g.font = "12px system-ui, sans-serif"; g.textAlign = "left"; g.fillStyle = css("text"); g.fillText(title, LEFT, y - 11);
  let x = LEFT + width; g.textAlign = "right";
  for (const [name, colour] of keys.slice().reverse()) {
    g.fillStyle = css("text"); g.fillText(name, x, y - 11); x -= g.measureText(name).width + 6;
    g.fillStyle = colour; g.fillRect(x - 14, y - 12.5, 14, 3); x -= 32;
  }
  const nice = niceStep(most / 3);
  for (let value = 0; value <= most; value += nice) {
    const at = y + h - value / most * h;
    g.fillStyle = css("rule"); g.fillRect(LEFT, at, width, 1);
    g.fillStyle = css("faint"); g.textAlign = "right"; g.fillText(value.toLocaleString(), LEFT - 8, at);
  }
  if (shownSteps(width).length < width / 6) for (const [, sx] of shownSteps(width)) { g.fillStyle = css("rule"); g.fillRect(sx - .5, y, 1, h); }
}
function area(g, s, y, h, width, colour, most) {
  clip(g, y - 2, h + 3, width, () => {
    const a = Math.max(0, Math.floor((from - s.s) / s.w)), b = Math.min(s.v.length, Math.ceil((to - s.s) / s.w));
    if (b <= a) return;
    const x = i => xOf(s.s + i * s.w, width), level = i => y + h - s.v[i] / most * h;
    g.beginPath(); g.moveTo(x(a), y + h);
    for (let i = a; i < b; i++) { g.lineTo(x(i), level(i)); g.lineTo(x(i + 1), level(i)); }
    g.lineTo(x(b), y + h); g.globalAlpha = .18; g.fillStyle = colour; g.fill(); g.globalAlpha = 1;
    g.beginPath();
    for (let i = a; i < b; i++) { g.lineTo(x(i), level(i)); g.lineTo(x(i + 1), level(i)); }
    g.strokeStyle = colour; g.lineWidth = 1.3; g.stroke();
  });
}
function niceStep(value) {
  const magnitude = 10 ** Math.floor(Math.log10(Math.max(value, 1)));
  return [1, 2, 5, 10].map(nice => nice * magnitude).find(step => step >= value) || 10 * magnitude;
}
const unit = () => D.length + D.zero < 600 ? [1, "s"] : D.length + D.zero < 10800 ? [60, "min"] : [3600, "h"];
function axis(g, y, width) {
  const [size, name] = unit(), wanted = (to - from) / size / Math.max(3, width / 110);
  const magnitude = 10 ** Math.floor(Math.log10(wanted)), every = [1, 2, 5, 10].map(nice => nice * magnitude).find(step => step >= wanted - 1e-12);
  g.font = "12px system-ui, sans-serif"; g.textAlign = "center";
  for (let k = Math.ceil((from + D.zero) / size / every - 1e-9); k * every * size <= to + D.zero + 1e-9; k++) {
    const x = xOf(k * every * size - D.zero, width);
    g.fillStyle = css("rule"); g.fillRect(x - .5, y - 6, 1, 5);
    g.fillStyle = css("faint"); g.fillText(+(k * every).toFixed(6) + " " + name, x, y + 8);
  }
}
