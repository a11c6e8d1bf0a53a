// Runs before the page is drawn, so that a chosen theme does not flash. Without a choice the system decides.
try {
  const chosen = localStorage.getItem("tenure.theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch {
  // Storage is blocked: the system decides.
}
