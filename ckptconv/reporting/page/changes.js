// --- two checkpoints: what the conversion did, or what changed most: tensors, or sums of them ---
const TOLD = 3, RANKED = 8; // rules, and changes, before all are asked for
const draw_conversion = () => { // what was done and what was lost, in a few lines
  const uses = compared.rules.map(() => 0), casts = new Map();
  const turned = new Map();
  compared.rows.forEach(([rule, sources], i) => {
    if (rule >= 0) uses[rule]++;
    const dtype = data.dtypes[data.dtype[i]], from = sources[0]?.[1];
    if (from && from !== dtype) casts.set(`${from} → ${dtype}`, (casts.get(`${from} → ${dtype}`) || 0) + 1);
    const axes = (compared.rules[rule]?.match(/ \((.*->.*)\)$/) || [])[1] || (sources.length > 1 ? "made of several" : sources.length && shape(sources[0][2]) !== shapes[data.shape[i]] ? "another shape" : "");
    if (axes) turned.set(axes, (turned.get(axes) || 0) + 1);
  });
  const lines = [], reasons = new Map();
  for (const t of compared.left) reasons.set(t[3] || "without a partner", (reasons.get(t[3] || "without a partner") || 0) + 1);
  if (data.made?.Converter) lines.push(["Converter", data.made.Converter]);
  const top = compared.rules.map((r, k) => [r || "the name is kept", uses[k]]).sort((a, b) => b[1] - a[1]);
  lines.push(["Rules", top.slice(0, TOLD).map(([r, n]) => `${r} (${count(n)})`).join("; ") + (top.length > TOLD ? `; and ${count(top.length - TOLD)} more, below` : "")]);
  lines.push(["Axes", [...turned].sort((a, b) => b[1] - a[1]).map(([what, n]) => `${what}: ${many(n, "tensor")}`).join("; ") || "all kept"]);
  lines.push(["Casts", [...casts].map(([what, n]) => `${what}: ${many(n, "tensor")}`).join("; ") || "none: every dtype is kept"]);
  lines.push(["Left out", [...reasons].map(([why, n]) => `${many(n, "tensor")}: ${why}`).join("; ") || "nothing"]);
  
  $("changes-title").textContent = "What the conversion did";
  $("ranked").replaceChildren(make("dl", { className: "did" }, ...lines.flatMap(([k, v]) => [make("dt", {}, k), make("dd", {}, v)])));
  const wrong = data.names.map((_, i) => i).filter(changed).sort((a, b) => rank(b) - rank(a)), more = wrong.length - RANKED;
  $("only").replaceChildren(...wrong.slice(0, RANKED).map((i) => {
    const name = button("", () => open_tensor(i), LINK);
    name.append(...breakable(told_name(i)));
    const by = [unpaired(i) ? "NaN or Inf on one side only" : change_text(measure("change", i)), measure("max_abs", i) === null ? "" : `max |d| ${number(measure("max_abs", i))}`].filter(Boolean).join(" · ");
    return make("p", { className: "badge warning" }, make("b", {}, status(i)), " · ", name, ` ${by}`);
  }), ...(more > 0 ? [make("p", {}, button(`and ${count(more)} more in the table`, () => { state.show = "changed"; restart(); $("tensors").scrollIntoView(); }, LINK))] : []));
  $("changes").hidden = false;
};
const RANKINGS = { tensor: "Tensors", layer: "Layers", part: "Parts", kind: "Kinds" };
const group_of = (i, by) => (by === "kind" || data.kinds[data.kind[i]] === STATE ? data.kinds[data.kind[i]] : by === "layer" ? layer_of(i) : data.layer[i] < 0 ? data.names[i] : data.parts[data.part[i]]);
const norm_of = (i) => { // what did not change has its norm in its statistics
  const squares = (data.count[i] - data.nan[i] - data.inf[i]) * (data.mean[i] ** 2 + data.std[i] ** 2);
  return measure("norm", i) ?? (Number.isFinite(squares) ? Math.sqrt(squares) : 0);
};
const sums_of = (by) => { // as if all tensors of a group were one; in the order of Diff.by
  const groups = new Map();
  for (let i = 0; i < rows; i++) {
    if (!["equal", "renamed", "values", "dtype"].includes(kind_of_change(i))) continue;
    const name = group_of(i, by), g = groups.get(name) || groups.set(name, { name, rows: [], changed: 0, norm: 0, apart: 0, abs: 0, unwell: 0 }).get(name);
    g.rows.push(i);
    g.changed += measure("differing", i) > 0 ? 1 : 0;
    g.norm += norm_of(i) ** 2; g.apart += (measure("apart", i) ?? 0) ** 2;
    g.abs = Math.max(g.abs, measure("max_abs", i) ?? 0); g.unwell += measure("unpaired", i) ?? 0;
  }
  const list = [...groups.values()].map((g) => ({ ...g, norm: Math.sqrt(g.norm), apart: Math.sqrt(g.apart), abs: g.unwell ? null : g.abs, change: g.unwell ? null : g.norm ? Math.sqrt(g.apart / g.norm) : g.apart ? Infinity : 0 }));
  return list.sort((a, b) => Boolean(b.unwell) - Boolean(a.unwell) || b.change - a.change || 0);
};
const ranked_tensors = () => data.names.map((_, i) => i).filter((i) => changed(i) && rank(i) > 0).sort((a, b) => unpaired(b) - unpaired(a) || is_beside(a) - is_beside(b) || rank(b) - rank(a)).map((i) => ( // weights first: counters and running means change in any training
  { name: told_name(i), beside: is_beside(i), change: unpaired(i) ? null : measure("change", i) ?? (measure("norm", i) === 0 && measure("apart", i) ? Infinity : 0), unwell: measure("unpaired", i), abs: measure("max_abs", i), more: measure("cosine", i) !== null && measure("change", i) ? `cosine ${number(measure("cosine", i))}` : "", go: () => open_tensor(i) }));
const ranked_sums = (by) => sums_of(by).filter((g) => g.changed).map((g) => ({ ...g, more: `${count(g.changed)} of ${many(g.rows.length, "tensor")}`, go: () => {
  const kind = by === "kind" || data.kinds[data.kind[g.rows[0]]] === STATE;
  look_at({ q: kind ? "" : g.name, show: "changed", kind: kind ? data.kind[g.rows[0]] : -1 });
} }));
let unfolded = false;
const draw_ranking = () => {
  const all = state.by === "tensor" ? ranked_tensors() : ranked_sums(state.by), ours = all.filter((r) => !r.beside || r.unwell), list = unfolded ? all.slice(0, 1000) : (ours.length ? ours : all).slice(0, RANKED);
  const changes = list.map((r) => r.change).filter((x) => x > 0 && x < Infinity), most = largest(changes), least = changes.reduce((a, b) => Math.min(a, b), most), logs = most > 30 * least;
  const long = (x) => (!(x > 0) ? 0 : x === Infinity ? 1 : logs ? 0.06 + (0.94 * Math.log(x / least)) / Math.log(most / least) : x / most);
  $("rankings").replaceChildren(...(data.values && all.length ? Object.entries(RANKINGS) : []).map(([id, title]) => button(title, () => { state.by = id; unfolded = false; draw_ranking(); write(); }, { "aria-pressed": state.by === id })));
  $("ranked").replaceChildren(...list.map((r) => {
    const told = [r.unwell ? `${many(r.unwell, "value")} finite on one side only` : "", r.change === Infinity ? "all zero in A" : r.change ? change_text(r.change) : "", r.abs ? `max |d| ${number(r.abs)}` : "", r.more];
    return bar(r.name, r.unwell ? 1 : long(r.change), 1, r.unwell ? "var(--warn)" : "", told.filter(Boolean).join(" · "), r.go, false);
  }), make("p", { className: "soft small" }, ...(logs ? ["Bars are logarithmic. "] : []),
    ...(all.length > list.length && !unfolded ? [button(`Show all ${count(all.length)}${ours.length && ours.length < all.length ? ", with buffers and optimizer state" : ""}`, () => { unfolded = true; draw_ranking(); }, LINK), " "] : []),
    ...(state.by === "tensor" ? [] : [button("CSV", () => take(new Blob([in_csv([[state.by, "tensors", "changed", "change", "norm", "apart", "max_abs", "unpaired"], ...sums_of(state.by).map((g) => [g.name, g.rows.length, g.changed, g.change, g.norm, g.apart, g.abs, g.unwell])])], { type: "text/csv" }), "changes.csv"), { className: "link", "aria-label": `Save as CSV: changes by ${state.by}` })])));
  return all.length;
};
const draw_changes = () => {
  if (converted) return draw_conversion();
  if (!comparing) return;
  const some = draw_ranking();
  $("changes-title").textContent = apart ? "No names in common" : some ? "What changed most" : "What differs";
  const others = ["dtype", "shape", "only_a", "only_b", "renamed"].map((kind) => [kind, data.names.map((_, i) => i).filter((i) => kind_of_change(i) === kind)]).filter(([, all]) => all.length);
  const link = (i) => { const name = button("", () => open_tensor(i), LINK); name.append(...(kind_of_change(i) === "renamed" ? [`${origin(i)} → `] : []), ...breakable(told_name(i))); return make("span", {}, name); };
  const found_again = others.some(([kind]) => kind === "renamed");
  const loud = !apart ? [] : [make("p", { className: "badge warning" }, make("b", {}, found_again ? "Names differ:" : "Nothing is compared:"), ` no tensor of A has the name of a tensor of B. ${found_again ? "Those with equal values are listed as renamed; the others are not compared. " : ""}`, ...hints.map(([, text]) => `Hint: ${text}`))];
  $("only").replaceChildren(...loud, ...others.map(([kind, all]) => {
    const casts = kind === "dtype" ? [...new Set(all.map((i) => `, ${compared.rows[i][1][0][1]} → ${data.dtypes[data.dtype[i]]}`))].join("") : "";
    const title = STATUS[kind][0].toUpperCase() + STATUS[kind].slice(1), list = (text) => button(text, () => { state.show = filters[kind] ? kind : "all"; restart(); $("tensors").scrollIntoView(); }, LINK);
    const groups = kind === "renamed" ? all.map((i) => ["", [i]]) : fold(all), rest = groups.slice(4).reduce((n, [, alike]) => n + alike.length, 0);
    const shown = groups.slice(0, 4).map(([text, alike]) => (alike.length > 1 ? list(`${text} (${count(alike.length)})`) : link(alike[0])));
    return make("p", { className: "small" }, make("b", {}, `${title} (${count(all.length)}${casts}): `), ...[...shown, ...(rest ? [list(`and ${count(rest)} more`)] : [])].flatMap((node, k) => [k ? ", " : "", node]));
  }));
  $("changes").hidden = !(some + others.length);
};
