// Light or dark, as the system has it or as the reader wants it.

function startTheme() {
  const select = byId("theme");
  select.closest("label").hidden = false;
  const apply = (value) => { if (value) document.documentElement.dataset.theme = value; else delete document.documentElement.dataset.theme; };
  try { select.value = localStorage.getItem("icrbench-theme") || ""; } catch { /* storage may be closed to files */ }
  apply(select.value);
  select.addEventListener("change", () => {
    apply(select.value);
    try { localStorage.setItem("icrbench-theme", select.value); } catch { /* the choice then lasts as long as the page */ }
  });
}
