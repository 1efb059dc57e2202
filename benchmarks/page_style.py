"""The page's style sheet: readable text first, light and dark, wide tables in their own frame."""

CSS = """
:root {
  --paper: #f6f5f2; --card: #fffefc; --ink: #1d1c1a; --quiet: #6b6863; --line: #e3e0da;
  --grid: #e2dfd9; --accent: #d9480f; --wash: #fdf0e8; --bad: #a61b1b; --badwash: #fbe9e7;
  color-scheme: light dark;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #131416; --card: #1b1d20; --ink: #e8e6e1; --quiet: #a09c95; --line: #2e3136;
    --grid: #33363b; --accent: #ff8a55; --wash: #2b211b; --bad: #ff9c8f; --badwash: #35201e;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body {
  margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
}
main { max-width: 1120px; margin: 0 auto; padding: 56px 24px 72px; }
h1, h2, h3 { line-height: 1.2; margin: 0; text-wrap: balance; overflow-wrap: anywhere; }
h1 { font-size: clamp(1.8rem, 4.6vw, 2.9rem); letter-spacing: -0.025em; font-weight: 720; }
h2 { font-size: 1.45rem; letter-spacing: -0.015em; margin: 64px 0 6px; }
h3 { font-size: 1rem; font-weight: 640; }
p { margin: 0 0 12px; max-width: 68ch; overflow-wrap: anywhere; }
.eyebrow { color: var(--accent); font-weight: 640; margin-bottom: 10px; }
.lead { font-size: 1.1rem; color: var(--quiet); margin-top: 14px; }
.under { color: var(--quiet); }
.chips { display: flex; flex-wrap: wrap; gap: 8px; margin: 20px 0 0; padding: 0; list-style: none; }
.chips li {
  border: 1px solid var(--line); background: var(--card); border-radius: 999px;
  padding: 3px 12px; font-size: .86rem; overflow-wrap: anywhere;
}
.banner {
  border-left: 4px solid var(--bad); background: var(--badwash); border-radius: 6px;
  padding: 12px 16px; margin: 0 0 28px; max-width: none; font-weight: 600;
}
.tiles {
  display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 230px), 1fr));
  gap: 14px; margin: 36px 0 22px;
}
.tile, .card {
  background: var(--card); border: 1px solid var(--line); border-radius: 12px; min-width: 0;
}
.tile { padding: 18px 20px; }
.tile b {
  display: block; font-size: 2rem; line-height: 1.15; letter-spacing: -0.03em; font-weight: 700;
}
.tile span { color: var(--quiet); font-size: .92rem; overflow-wrap: anywhere; }
.tile.ours b { color: var(--accent); }
.plots {
  display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 440px), 1fr));
  gap: 16px; margin: 20px 0;
}
figure.card { margin: 0; padding: 18px 20px 14px; }
figure h3 { margin-bottom: 12px; }
figcaption { color: var(--quiet); font-size: .85rem; line-height: 1.45; margin-top: 12px; }
svg.figure { display: block; width: 100%; height: auto; color: var(--ink); }
svg.figure * { stroke-linejoin: round; stroke-linecap: butt; }
svg.figure text { font-family: inherit !important; font-variant-numeric: tabular-nums; }
.frame { overflow-x: auto; margin: 16px 0; }
table { border-collapse: collapse; width: 100%; font-size: .875rem; line-height: 1.35; }
caption { text-align: left; padding: 14px 16px 8px; font-weight: 640; }
caption span { max-width: min(100%, calc(100vw - 60px)); }
th, td { padding: 6px 12px; text-align: left; vertical-align: top; white-space: nowrap; }
th:first-child, td:first-child { padding-left: 16px; }
thead th {
  color: var(--quiet); font-weight: 560; font-size: .8rem; border-bottom: 1px solid var(--line);
}
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
td.long { white-space: normal; min-width: 180px; color: var(--quiet); }
tr.group th { padding: 16px 16px 5px; font-weight: 640; border-bottom: 1px solid var(--line); }
tr.group span, caption span { position: sticky; left: 16px; display: inline-block; }
tr.ours { background: var(--wash); }
tr.ours td.who { color: var(--accent); font-weight: 640; }
tr.baseline td.who { font-weight: 640; }
td.unsteady { color: var(--quiet); font-style: italic; }
.notes { list-style: none; padding: 0; margin: 12px 0; font-size: .88rem; color: var(--quiet); }
.notes li { margin: 5px 0; overflow-wrap: anywhere; }
.tag {
  display: inline-block; border-radius: 4px; padding: 0 7px; margin-right: 6px; font-size: .76rem;
  font-weight: 640; background: var(--line); color: var(--ink);
}
.tag.refused, .tag.failed { background: var(--badwash); color: var(--bad); }
details { margin: 14px 0; }
summary { cursor: pointer; color: var(--accent); font-weight: 600; }
dl { display: grid; grid-template-columns: minmax(90px, max-content) 1fr; gap: 6px 20px; }
dt { color: var(--quiet); }
dd { margin: 0; overflow-wrap: anywhere; }
.environment { padding: 18px 20px; margin: 16px 0; font-size: .92rem; }
.method { columns: 2 420px; column-gap: 40px; }
.method p { break-inside: avoid; }
footer { margin-top: 64px; color: var(--quiet); font-size: .88rem; }
@media (max-width: 560px) {
  main { padding: 28px 12px 48px; }
  h2 { margin-top: 48px; }
  figure.card { padding: 14px 10px 12px; }
  .tile b { font-size: 1.7rem; }
  dl { grid-template-columns: 1fr; gap: 0; }
  dd { margin-bottom: 8px; }
}
@media print { .card, .tile { break-inside: avoid; } }
"""
