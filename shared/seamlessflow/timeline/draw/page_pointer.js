// Looking closer
const said = seconds => seconds >= 600 ? (seconds / 60).toFixed(1) + " min" : seconds >= 10 ? seconds.toFixed(1) + " s" : seconds >= 1 ? seconds.toFixed(2) + " s" : (1000 * seconds).toFixed(0) + " ms";
const escaped = text => text.replace(/[&<>]/g, c => ({"&": "&amp;", "<": "&lt;", ">": "&gt;"})[c]);
function at(s, time) { const i = Math.floor((time - s.s) / s.w); return i >= 0 && i < s.v.length ? s.v[i] : null; }
function describe(canvas, x, y) {
  const width = widthOf(canvas), time = from + (x - LEFT) / width * (to - from);
  if (x < LEFT || x > LEFT + width) return null;
  const moment = "<span class=why>at " + (time + D.zero).toFixed(2) + " s</span>";
  if (canvas === chart) {
    const place = Math.floor((y - top0()) / rowHeight), node = D.nodes[place];
    if (y < top0() || !node) return null;
    const i = firstAt(node, time);
    if (i >= node.end.length || node.begin[i] > time) return `<b>${escaped(node.n)}</b><br>${moment}`;
    const [kind, , reason, epoch, busy] = node.s.slice(5 * i, 5 * i + 5), [name, words] = D.kinds[kind];
    const flight = node.f && kind === D.rollout ? `<br>${mean(node.f, time - 1e-9, time + Math.max(node.f.w / 4, 1e-6)).toFixed(1)} generations in flight` : "";
    const sampled = kind === D.rollout && busy < 100 ? `<br>sampled ${busy} % of that time` : "";
    return `<b>${escaped(node.n)}</b> ${moment}<br><i style="background:${css(name)}"></i>${words}, ${said(node.end[i] - node.begin[i])}`
      + ` <span class=why>(${(node.begin[i] + D.zero).toFixed(2)} – ${(node.end[i] + D.zero).toFixed(2)} s)</span>${sampled}${flight}`
      + (D.reasons[reason] ? `<br><span class=why>${escaped(D.reasons[reason])}</span>` : "")
      + (epoch >= 0 ? `<br><span class=why>lease ${epoch}</span>` : "");
  }
  const lines = [];
  if (D.flight && at(D.flight, time) !== null) lines.push(`${at(D.flight, time).toFixed(1)} in flight`);
  if (D.queued && at(D.queued, time) !== null) lines.push(`${at(D.queued, time).toFixed(1)} queued`);
  const step = D.steps.reduce((best, s) => !best || Math.abs(s[1] - time) < Math.abs(best[1] - time) ? s : best, null);
  if (step && Math.abs(step[1] - time) < (to - from) / 60)
    lines.push(`<b>step ${step[0]}</b>` + (step[2] !== null ? `: tokens ${step[2].toFixed(2)} steps old, at most ${step[3]}` : "") + (step[4] !== null ? `; weights ${step[4]}` : ""));
  return [moment, ...lines].join("<br>");
}
let pending = false;
function later() { if (!pending) { pending = true; requestAnimationFrame(() => { pending = false; draw(); }); } }
function clamp() {
  const least = Math.max(D.length * 1e-6, 0.002);
  if (to - from < least) to = from + least;
  if (to - from > D.length) { from = 0; to = D.length; }
  if (from < 0) { to -= from; from = 0; }
  if (to > D.length) { from -= to - D.length; to = D.length; }
}
for (const canvas of [chart, under]) {
  let grabbed = null;
  canvas.addEventListener("wheel", event => {
    const width = widthOf(canvas), x = event.offsetX - LEFT;
    if (x < 0 || x > width || (event.shiftKey && D.nodes.length > 100)) return;
    event.preventDefault();
    const here = from + x / width * (to - from);
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) { const by = event.deltaX / width * (to - from); from += by; to += by; }
    else { const factor = Math.exp(event.deltaY * 0.0016); from = here - (here - from) * factor; to = here + (to - here) * factor; }
    clamp(); later();
  }, {passive: false});
  canvas.addEventListener("pointerdown", event => { grabbed = [event.clientX, from, to]; canvas.setPointerCapture(event.pointerId); });
  canvas.addEventListener("pointerup", () => { grabbed = null; });
  canvas.addEventListener("pointermove", event => {
    const width = widthOf(canvas);
    if (grabbed) {
      const by = (grabbed[0] - event.clientX) / width * (grabbed[2] - grabbed[1]);
      from = grabbed[1] + by; to = grabbed[2] + by; clamp(); later();
    }
    const words = describe(canvas, event.offsetX, event.offsetY);
    cursor = words === null ? null : from + (event.offsetX - LEFT) / width * (to - from);
    if (!grabbed) drawUnder();
    tip.style.display = words === null ? "none" : "block";
    if (words !== null) {
      tip.innerHTML = words;
      const box = tip.getBoundingClientRect();
      tip.style.left = Math.min(event.clientX + 16, innerWidth - box.width - 8) + "px";
      tip.style.top = (event.clientY + 18 + box.height > innerHeight ? event.clientY - box.height - 12 : event.clientY + 18) + "px";
    }
  });
  canvas.addEventListener("pointerleave", () => { tip.style.display = "none"; cursor = null; drawUnder(); });
  canvas.addEventListener("dblclick", whole);
}
function whole() { from = 0; to = D.length; later(); }
function legend() {
  $("legend").innerHTML = D.kinds.filter(kind => kind[3]).map(([name, words]) => {
    const back = name === "rollout" && D.most ? `linear-gradient(90deg, ${css("few")}, ${css("rollout")})` : css(name);
    return `<span class=key><i style="background:${back}"></i>${words}${name === "rollout" && D.most ? ", few to many in flight" : ""}</span>`;
  }).join("");
}
$("whole").onclick = whole;
$("thick").onclick = () => { rowHeight = Math.min(40, rowHeight * 1.5, 16000 / D.nodes.length); later(); };
$("thin").onclick = () => { rowHeight = Math.max(rowHeight / 1.5, 40 / D.nodes.length); later(); };
$("mode").onclick = () => { shade = shade === "dark" ? "light" : "dark"; legend(); later(); };
addEventListener("resize", later);
addEventListener("keydown", event => {
  const by = (to - from) * .15;
  if (event.key === "ArrowLeft") { from -= by; to -= by; }
  else if (event.key === "ArrowRight") { from += by; to += by; }
  else if (event.key === "+") { from += by; to -= by; }
  else if (event.key === "-") { from -= by; to += by; }
  else return;
  clamp(); later();
});
legend(); draw();
