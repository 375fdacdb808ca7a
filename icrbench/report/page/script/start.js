// What needs this script is hidden until here.

startTheme();
if (!DATA.tables.length) return;
for (const element of document.querySelectorAll(".scripted")) element.hidden = false;
startFilters();
startDownloads();
startRankings();
startAddress();
showTables();
startExamples();
if (isAnchor()) follow();
showAskedDetail();
