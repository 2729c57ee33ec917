// --- over depth: one small chart for each part of the layers, each with its own scale ---
const peak = (i) => (data.min[i] === null ? null : Math.max(Math.abs(data.min[i]), Math.abs(data.max[i])));
const MEASURES = {
  ...(data.values && data.names.some((_, i) => measure("change", i)) ? { change: ["Change", (i) => (here(i) ? (/equal|renamed/.test(kind_of_change(i)) ? 0 : measure("change", i)) : null)] } : {}),
  ...(data.values && alone ? { std: ["Std", (i) => value("std", i)], max: ["Max |x|", peak], mean: ["Mean", (i) => value("mean", i)] } : {}),
};
const DOTS = 120; // layers of a chart, above which only what is odd has a dot
const series = () => {
  const by = new Map();
  for (let i = 0; i < rows; i++) {
    if (data.layer[i] < 0 || data.roles[data.role[i]] || !here(i)) continue;
    const key = `${data.stack[i]} ${data.part[i]} ${data.shapes[data.shape[i]].length}`; // convolutions and norms may alternate
    put(by, key, i);
  }
  const size = (list) => list.reduce((s, i) => s + data.count[i], 0);
  return [...by.values()].filter((list) => list.length > 2).map((list) => list.sort((a, b) => data.layer[a] - data.layer[b])).sort((a, b) => size(b) - size(a));
};
const line = (list, take) => {
  const points = list.map((i) => [data.layer[i], take(i), i]).filter((p) => typeof p[1] === "number");
  const ys = points.map((p) => p[1]), low = Math.min(...ys), high = Math.max(...ys), first = data.layer[list[0]], last = data.layer[list[list.length - 1]];
  const positive = ys.filter((y) => y > 0), logs = low >= 0 && positive.length > 1 && high > 30 * Math.min(...positive);
  const floor = logs ? Math.log(Math.min(...positive)) : Math.min(0, low), top = logs ? Math.log(high) : Math.max(0, high);
  const at = ([x, y]) => [4 + (192 * (x - first)) / Math.max(1, last - first), 56 - (52 * ((logs ? Math.log(Math.max(y, Math.exp(floor))) : y) - floor)) / (top - floor || 1)];
  const names = `${stack_name(data.stack[list[0]])} ${data.parts[data.part[list[0]]]}`;
  const box = svg("svg", { viewBox: "0 0 200 60", role: "img", "aria-label": `${MEASURES[state.depth][0]} of ${names} over ${points.length} layers: ${number(low)} to ${number(high)}` });
  box.append(svg("polyline", { points: points.map((p) => at(p).map((n) => n.toFixed(1)).join(",")).join(" ") }));
  for (const p of points.length > DOTS ? points.filter((q) => severe(q[2]).length) : points) {
    const [x, y] = at(p), dot = svg("circle", { cx: x.toFixed(1), cy: y.toFixed(1), r: severe(p[2]).length ? 4 : 2.5 }, svg("title", {}, `${data.names[p[2]]}: ${number(p[1])}`));
    if (severe(p[2]).length) dot.classList.add("odd");
    box.append(dot);
  }
  box.addEventListener("click", (e) => { // opens the nearest
    const area = box.getBoundingClientRect(), x = (200 * (e.clientX - area.left)) / area.width, far = (p) => Math.abs(at(p)[0] - x);
    open_tensor(points.reduce((best, p) => (far(p) < far(best) ? p : best))[2]);
  });
  const text = state.depth === "change" ? change_text : number, range = text(low) === text(high) ? text(low) : `${text(low)} to ${text(high)}`;
  return make("figure", { className: "chart" }, make("figcaption", {}, make("b", { title: names }, data.parts[data.part[list[0]]])), box, make("p", { className: "soft small" }, `${range}${logs ? ", logarithmic" : ""}`));
};
let every = false;
const draw_depth = () => {
  const names = Object.keys(MEASURES);
  if (!MEASURES[state.depth]) state.depth = names[0];
  const told = (i) => { const y = MEASURES[state.depth][1](i); return typeof y === "number" && (!compared || y); };
  const all = names.length ? series().filter((list) => list.some(told)) : [];
  $("depth").hidden = !all.length;
  if (!all.length) return;
  $("depth-title").textContent = comparing ? "Change over depth" : converted ? "Difference over depth" : "Over depth";
  $("measures").replaceChildren(...(names.length > 1 ? Object.entries(MEASURES) : []).map(([id, [title]]) => button(title, () => { state.depth = id; draw_depth(); write(); }, { "aria-pressed": state.depth === id })));
  const stacks = new Map(), some = every ? all : all.slice(0, innerWidth > 700 ? 16 : 8);
  for (const list of some) {
    put(stacks, stack_name(data.stack[list[0]]), line(list, MEASURES[state.depth][1]));
  }
  $("charts").replaceChildren(...[...stacks].flatMap(([stack, list]) => [make("h3", {}, make("code", {}, stack)), make("div", { className: "charts" }, ...list)]),
    ...(some.length < all.length ? [button(`Show all ${count(all.length)} charts`, () => { every = true; draw_depth(); }, { className: "plain" })] : []));
};
