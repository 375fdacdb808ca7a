// The view in the address, so that a link shows what its sender saw. What is as it always is stands not in it.

function keepAddress() {
  const changed = Object.entries(shown).filter(([name, value]) => value !== DEFAULTS[name]);
  const base = location.href.split("#")[0];
  history.replaceState(null, "", changed.length ? `${base}#${new URLSearchParams(changed)}` : base);
}

// The form says which values there are: a select takes no other.
function readAddress() {
  const form = byId("filters");
  const asked = new URLSearchParams(isAnchor() ? "" : location.hash.slice(1));
  for (const [name, usual] of Object.entries(DEFAULTS)) {
    const field = form.elements.namedItem(name);
    shown[name] = asked.has(name) ? asked.get(name) : usual;
    if (!field) continue;
    field.value = shown[name];
    if (field.value !== shown[name]) field.value = shown[name] = usual;
  }
  form.querySelector("fieldset").disabled = isMetric();
}

// "#help" leads to a place on the page; "#metric=mcc" is a view of it.
const isAnchor = () => location.hash !== "" && !location.hash.includes("=");

function follow() {
  const place = byId(decodeURIComponent(location.hash.slice(1)));
  if (!place) return;
  if (place.tagName === "DETAILS") place.open = true;
  place.scrollIntoView();
}

function startAddress() {
  readAddress();
  addEventListener("hashchange", () => {
    if (isAnchor()) {
      follow();
      if (Object.keys(DEFAULTS).some((name) => shown[name] !== DEFAULTS[name])) keepAddress();
      return;
    }
    readAddress();
    showTables();
    showAskedDetail();
  });
}
