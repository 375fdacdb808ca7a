// The form above the tables.

function startFilters() {
  const form = byId("filters");
  let waiting = 0;
  form.hidden = false;
  form.addEventListener("submit", (event) => event.preventDefault());
  const update = (event) => {
    const { name, value } = event.target;
    if (shown[name] === value) return; // leaving a field changes nothing
    shown[name] = value;
    if (name === "role") shown.column = value || DEFAULTS.column;
    form.querySelector("fieldset").disabled = isMetric();
    clearTimeout(waiting);
    waiting = setTimeout(showTables, event.type === "input" ? 150 : 0);
  };
  form.addEventListener("change", update);
  form.elements.namedItem("method").addEventListener("input", update);
}
