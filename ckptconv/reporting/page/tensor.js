// --- one tensor ---
const facts = (pairs) => make("dl", { className: "facts" }, ...pairs.map(([k, v]) => make("div", {}, make("dt", {}, k), make("dd", {}, String(v)))));
const sides = comparing ? ["A", "B"] : ["as converted", "this file"];
const histogram = (i) => {
  const bins = decode(data.bins[i]), old = data.was[i] ? decode(data.was[i][0]) : [], clip = data.clip[i];
  const [low, high] = clip || [data.min[i], data.max[i]];
  if (low === high) return make("p", { className: "soft" }, `All ${data.nan[i] + data.inf[i] ? "finite " : ""}values are ${number(low)}.`);
  const label = `${bins.length} equal bins from ${number(low)} to ${number(high)}`;
  const out = clip && (clip[2] || clip[3]) ? ` Not shown: ${[[clip[2], "below"], [clip[3], "above"]].filter((x) => x[0]).map(([n, side]) => `${count(n)} ${side}`).join(" and ")}; all values are from ${number(data.min[i])} to ${number(data.max[i])}.` : "";
  const box = svg("svg", { viewBox: `0 0 ${bins.length * 10} 100`, preserveAspectRatio: "none", role: "img", "aria-label": `Histogram: ${label}.${out}` });
  bins.forEach((n, k) => box.append(svg("rect", { x: k * 10 + 1, width: 8, y: 100 - n / 2.6, height: n / 2.6 })));
  if (old.length) box.append(svg("polyline", { class: "was", points: [...old].flatMap((n, k) => [`${k * 10},${(100 - n / 2.6).toFixed(1)}`, `${k * 10 + 10},${(100 - n / 2.6).toFixed(1)}`]).join(" ") }));
  return make("figure", {}, box, make("figcaption", {}, `Histogram, ${label}.${old.length ? ` Bars: ${sides[1]}; line: ${sides[0]}.` : ""}${out} `, as_png(box, data.names[i], `Histogram, ${label}.${out}`)));
};
const palette = () => {
  const style = getComputedStyle(document.documentElement);
  const [low, high] = ["--low", "--high"].map((name) => style.getPropertyValue(name).split(",").map(Number));
  return (n) => (n === 255 ? [214, 40, 40] : n === 254 ? [245, 158, 11] : low.map((m, c) => m + ((high[c] - m) * n) / 253));
};
const shades = ([high, wide, text], label) => {
  const colour = palette(), canvas = make("canvas", { width: wide, height: high, role: "img", "aria-label": label });
  const context = canvas.getContext("2d"), image = context.createImageData(wide, high);
  decode(text).forEach((n, k) => image.data.set([...colour(n), 255], 4 * k));
  context.putImageData(image, 0, 0);
  return canvas;
};
const heatmap = (i) => {
  const [high, wide, text, top, moved] = data.heat[i], cells = decode(text);
  const over = cells.includes(254), unwell = cells.includes(255);
  const label = `the largest ${!moved ? "|x|" : comparing ? "|B − A|" : "difference"} of each of ${high} × ${wide} cells, 0 to ${number(top)}${over ? "; orange is larger" : ""}${unwell ? "; red is NaN or infinite" : ""}`;
  const canvas = shades(data.heat[i], `Heat map: ${label}`);
  return make("figure", {}, canvas, make("figcaption", {}, `Heat map, ${label}. `, as_png(canvas, data.names[i], `Heat map, ${label}.`)));
};
const beside = (i) => {
  const [rule, sources, kind, found] = compared.rows[i];
  const side = (title, lines) => make("div", {}, make("h3", {}, title), ...lines.map((l) => make("div", { className: "name" }, l)));
  const left = sources.length ? sources.map(([n, d, s]) => `${n}  ${d} ${shape(s)}`) : [comparing ? "not there" : "no source: only in the target"];
  const right = here(i) ? [`${data.names[i]}  ${data.dtypes[data.dtype[i]]} ${shapes[data.shape[i]]}`] : ["not there"];
  const out = [make("div", { className: "pair" }, side(comparing ? "A" : "Source", left), side(comparing ? "B" : "Target", right))];
  if (rule >= 0) out.push(make("p", {}, "Rule: ", make("code", {}, compared.rules[rule] || "the name is kept")));
  if (kind === "equal" && data.values) out.push(make("p", {}, comparing ? "Equal, bit for bit." : "Bit for bit what the conversion gives."));
  else if (kind && kind !== "equal") out.push(make("p", { className: changed(i) && !comparing ? "bad" : "" }, comparing ? `${STATUS[kind][0].toUpperCase()}${STATUS[kind].slice(1)}.` : `Not what the conversion gives: ${status(i)}.`));
  if (found) out.push(facts([["change |d|/|a|", of_pair("change", i, change_text) || "–"], ["max |d|", of_pair("max_abs", i, number)], ["cosine", of_pair("cosine", i, number)], ["relative", of_pair("max_rel", i, number)], ["differing", `${count(found.differing)} of ${count(found.elements)}`], ["first at", `[${found.first.join(", ")}]`]]));
  if (found?.unpaired) out.push(make("p", { className: "bad" }, `${many(found.unpaired, "value")} finite on one side only.`));
  return out;
};
const copy = (text) => (navigator.clipboard ? navigator.clipboard.writeText(text) : Promise.reject()).then(() => "Copied", () => "Not allowed here");
const open_tensor = (i) => {
  if (!(i >= 0 && i < rows)) return;
  if (data.live) { waiting.abort(); waiting = new AbortController(); }
  const copying = button("Copy name", async (e) => { e.target.textContent = await copy(data.names[i]); }, { className: "plain" });
  const at = order.indexOf(i), step = (by, text) => button(text, () => { active = at + by; move(active); open_tensor(order[active]); $("detail").querySelector(`[data-step="${by}"]`)?.focus(); }, { className: "plain", disabled: typeof order[at + by] !== "number" || at < 0, "data-step": by });
  const body = [
    button("✕", () => $("detail").close(), { className: "close", "aria-label": "Close" }),
    make("h2", { id: "detail-name" }, ...breakable(told_name(i))),
    make("p", { className: "tools" }, copying, step(-1, "← Previous"), step(1, "Next →")),
    facts([["dtype", data.dtypes[data.dtype[i]]], ["shape", shapes[data.shape[i]]], ["parameters", count(data.count[i])], ["size", bytes(data.bytes[i])], ["role", roles[data.role[i]]], ["kind", data.kinds[data.kind[i]]]]),
  ];
  for (const [check, , text, index] of flags.get(i) || []) body.push(make("p", { className: `badge ${checks[check][0]}` }, make("b", {}, check), ` ${text}`, ...(data.live && index?.length ? [" ", show_place(index)] : [])));
  if (compared) body.push(...beside(i));
  if (along?.norm[i]) body.push(make("h3", {}, `Over ${many(along.urls.length, "checkpoint")}`), course(i));
  if (data.values) {
    const old = data.was[i], both = (m, k) => (old ? `${number(stat(m, i))} (${sides[0]}: ${number(old[k])})` : number(stat(m, i)));
    body.push(make("h3", {}, "Values"), facts([...["min", "max", "mean", "std"].map((m, k) => [m, both(m, k + 1)]), ...["zeros", "nan", "inf"].map((m) => [m, count(data[m][i])])]));
    const pictures = [data.bins[i] ? histogram(i) : null, data.heat[i] && !data.live ? heatmap(i) : null].filter(Boolean);
    body.push(make("div", { className: "pictures" }, ...pictures));
    if (!pictures.length && data.count[i]) body.push(make("p", { className: "soft" }, "Pictures are kept of the largest tensors only."));
  } else body.push(data.live ? read_values(i) : make("p", { className: "soft" }, "Values were not read (--no-values)."));
  if (data.live && here(i)) body.push(look_into(i));
  $("detail").replaceChildren(...body);
  if (!$("detail").open) $("detail").showModal();
  $("detail").scrollTop = 0;
};
$("detail").addEventListener("click", (e) => { if (e.target === $("detail")) $("detail").close(); });
$("detail").addEventListener("close", () => $("scroll").focus({ preventScroll: true }));
