// --- a series: how the layers moved from one checkpoint to the next ---
const MOVES = along ? { step: "From the one before", drift: "From the first" } : {};
// What tells the checkpoints apart: epoch-1 of runs/a/epoch-1.safetensors, 100 of step-100/model.pt.
const short_urls = (() => {
  if (!along) return [];
  const cut = along.urls.map((url) => url.split(/[/\\]/).filter(Boolean));
  const least = Math.min(...cut.map((c) => c.length)), same = (k) => new Set(cut.map((c) => c[c.length - k])).size < cut.length;
  let k = 1;
  while (k < least && same(k)) k++;
  return cut.map((c) => (c[c.length - k] || c.join("/")).replace(/\.(safetensors|pth?|ckpt|bin|npz|h5|hdf5|keras|index)$/, "")).map((n) => (n.length > 18 ? `…${n.slice(-17)}` : n));
})();
if (along && new Set(along.urls.map(pattern)).size === 1 && along.urls.some((url, k) => k && collator.compare(along.urls[k - 1], url) > 0)) {
  data.notes.unshift(["order", `the checkpoints are in the order given, in which their numbers do not rise: ${short_urls.slice(0, 12).join(", ")}${short_urls.length > 12 ? " …" : ""}`, "", 0]);
}
const SHOWN_LAYERS = 400;
const movement = () => { // layers, and modules that are in none: squares are summed, as if a layer were one tensor
  const groups = new Map(), key = state.moves, first = key === "drift";
  for (let i = 0; i < rows; i++) {
    const norm = along.norm[i], gap = along[key][i]; // the norms, and the shares of what was there before
    if (!norm || data.roles[data.role[i]]) continue;
    const layer = data.layer[i], name = layer_of(i);
    const group = groups.get(name) || groups.set(name, { name, stack: layer < 0 ? -1 : data.stack[i], layer, gap: gap.map(() => 0), base: gap.map(() => 0), lost: gap.map(() => false), rows: [] }).get(name);
    group.rows.push(i);
    gap.forEach((x, k) => {
      const size = norm[first ? 0 : k];
      if (x === null || x === UNWELL) { group.lost[k] = x || group.lost[k] || "–"; return; }
      group.gap[k] += (size ? x * size : norm[k + 1]) ** 2; group.base[k] += size ** 2;
    });
  }
  const list = [...groups.values()], first_of = new Map(); // in the order of the file, and layers in that of their numbers
  list.forEach((g, k) => { g.place = g.stack < 0 ? k : first_of.get(g.stack) ?? (first_of.set(g.stack, k), k); });
  list.sort((a, b) => a.place - b.place || a.layer - b.layer);
  return list.map((g) => ({ ...g, moves: g.gap.map((x, k) => (g.lost[k] || (x ? Math.sqrt(x / g.base[k]) : 0))) }));
};
const light = (rgb) => rgb.map((c) => (c / 255 <= 0.04045 ? c / 3294.6 : ((c / 255 + 0.055) / 1.055) ** 2.4)).reduce((s, c, k) => s + c * [0.2126, 0.7152, 0.0722][k], 0);
const draw_series = () => {
  $("series").hidden = !along || !data.values;
  if ($("series").hidden) return;
  if (!MOVES[state.moves]) state.moves = "step";
  $("moves").replaceChildren(...Object.entries(MOVES).map(([id, title]) => button(title, () => { state.moves = id; draw_series(); }, { "aria-pressed": state.moves === id })));
  const list = movement(), all = list.flatMap((g) => g.moves).filter((x) => x > 0 && x < Infinity), most = largest(all), least = Math.max(all.reduce((a, b) => Math.min(a, b), most), most / 1e4), colour = palette();
  const some = (x) => list.some((g) => g.moves.includes(x));
  const cell = (x, g, k) => {
    const shade = x > 0 ? (most > least ? Math.min(1, Math.max(0, Math.log(x / least) / Math.log(most / least))) : 1) : 0, rgb = colour(Math.round(253 * shade));
    const box = make("td", { title: `${g.name}, ${short_urls[k + 1]}: ${x === "–" ? "a tensor is in one of them only, or its numbers are beyond measure" : x === UNWELL ? "a value is NaN or infinite" : x === Infinity ? "all zero before" : change_text(x)}` }, x === "–" ? x : change_text(x));
    if (x === UNWELL) { box.className = "unwell"; return box; }
    box.style.background = `rgb(${rgb.map(Math.round).join(" ")})`;
    box.style.color = light(rgb) > 0.18 ? "#000" : "#fff"; // where black and white have the same contrast
    return box;
  };
  const body = list.slice(0, SHOWN_LAYERS).map((g) => {
    const go = button("", () => { look_at({ q: g.name }); }, LINK);
    go.append(...breakable(g.name));
    return make("tr", {}, make("th", { scope: "row" }, go), ...g.moves.map((x, k) => cell(x, g, k)));
  });
  const head = make("tr", {}, make("th", { scope: "col" }, "layer"), ...short_urls.slice(1).map((name) => make("th", { scope: "col", title: name }, make("span", {}, name))));
  $("moved").replaceChildren(make("table", {}, make("thead", {}, head), make("tbody", {}, ...body)));
  $("arrivals").replaceChildren(make("p", { className: "soft small" }, `|d| / |x| of the weights of a layer together; ${most ? `colours are logarithmic, ${change_text(least)} to ${change_text(most)}` : some(Infinity) ? "only what was zero moved" : "nothing moved that could be measured"}.${some(Infinity) ? " From zero: the weights of the layer were all zero before, so that the change has no share." : ""}${some("–") ? " –: a tensor is in one of the two only, or its numbers are beyond measure." : ""}${list.length > SHOWN_LAYERS ? ` ${count(list.length - SHOWN_LAYERS)} more layers are not shown; the table below has their tensors.` : ""}`));
};
const course = (i) => { // of one tensor: lines over the checkpoints
  const chart = (title, ys, text) => {
    const where = (what, words) => { const urls = ys.flatMap((y, k) => (y === what ? [short_urls[k + along.urls.length - ys.length]] : [])); return urls.length ? [`${words}: ${urls.join(", ")}`] : []; };
    const odd = [...where(Infinity, "from zero"), ...where(UNWELL, change_text(UNWELL))].join("; ");
    ys = ys.map((y) => (y === Infinity || y === UNWELL ? null : y));
    const known = ys.map((y, k) => [k, y]).filter(([, y]) => y !== null);
    if (!known.length) return make("figure", { className: "chart" }, make("figcaption", {}, make("b", {}, title)), make("p", { className: "soft small" }, odd));
    const high = Math.max(...known.map((p) => p[1])), low = Math.min(...known.map((p) => p[1])), range = [text(low) === text(high) ? text(low) : `${text(low)} to ${text(high)}`, odd].filter(Boolean).join("; ");
    const at = ([k, y]) => `${4 + (192 * k) / Math.max(1, ys.length - 1)},${(56 - (52 * y) / (high || 1)).toFixed(1)}`;
    const box = svg("svg", { viewBox: "0 0 200 60", role: "img", "aria-label": `${title}: ${range}` }, ...ys.slice(1).flatMap((y, k) => (y === null || ys[k] === null ? [] : [svg("polyline", { points: `${at([k, ys[k]])} ${at([k + 1, y])}` })])));
    for (const p of known) { const [x, y] = at(p).split(","); box.append(svg("circle", { cx: x, cy: y, r: 2.5 }, svg("title", {}, `${short_urls[p[0] + along.urls.length - ys.length]}: ${text(p[1])}`))); }
    return make("figure", { className: "chart" }, make("figcaption", {}, make("b", {}, title)), box, make("p", { className: "soft small" }, range));
  };
  return make("div", { className: "charts" }, ...[["Change from the one before", along.step[i], change_text], ["Change from the first", along.drift[i], change_text], ["Norm", along.norm[i], number]].filter(([, ys]) => ys?.some((y) => y !== null)).map((which) => chart(...which)));
};
