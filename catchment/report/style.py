"""The look of a report: plain, printable, light or dark as the reader's system is."""

CSS = """
:root {
  color-scheme: light dark;
  --page: #f6f7f9; --card: #ffffff; --text: #1c2024; --quiet: #5b6470; --line: #dfe3e8; --mark: #0072b2;
  --warn: #8a4b00; --warn-page: #fff4e0;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #14171a; --card: #1d2125; --text: #e6e9ec; --quiet: #9aa4b0; --line: #333a42; --mark: #56b4e9;
    --warn: #ffc46b; --warn-page: #33270f;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; padding: 2rem 1.25rem 4rem; max-width: 76rem;
  background: var(--page); color: var(--text);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
}
h1 { margin: 0; font-size: 1.7rem; line-height: 1.25; overflow-wrap: anywhere; }
h2 { margin: 2.5rem 0 .8rem; padding-bottom: .3rem; border-bottom: 1px solid var(--line); font-size: 1.2rem; }
h3 { margin: 1.4rem 0 .5rem; font-size: 1rem; overflow-wrap: anywhere; }
p { margin: .4rem 0; }
.quiet { color: var(--quiet); }
.unfinished {
  display: inline-block; padding: .1rem .55rem; border-radius: .4rem;
  background: var(--warn-page); color: var(--warn); font-size: .9rem; font-weight: 600;
}
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(9.5rem, 1fr)); gap: .8rem; margin: 1rem 0; }
.runs { grid-template-columns: repeat(auto-fill, minmax(13rem, 1fr)); }
.card, .table, details {
  background: var(--card); border: 1px solid var(--line); border-radius: .6rem;
}
.card { margin: 0; padding: .7rem .9rem; min-width: 0; overflow-wrap: anywhere; }
.card dt, .card dd { margin: 0; }
.card dt { color: var(--quiet); font-size: .82rem; }
.card dd { font-size: 1.4rem; font-weight: 600; line-height: 1.35; font-variant-numeric: tabular-nums; }
.card dd.note { color: var(--quiet); font-size: .82rem; font-weight: 400; }
.card dd.unfinished { color: var(--warn); font-size: .82rem; }
.table { width: fit-content; max-width: 100%; overflow-x: auto; margin: .8rem 0; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { padding: .45rem .75rem; text-align: left; vertical-align: top; white-space: nowrap; }
th { vertical-align: bottom; white-space: normal; color: var(--quiet); font-weight: 600; }
thead th { border-bottom: 1px solid var(--line); }
tr + tr td { border-top: 1px solid var(--line); }
td.text { max-width: 26rem; white-space: normal; overflow-wrap: break-word; }
th.number, td.number { text-align: right; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 29rem), 1fr)); gap: 1rem; }
figure {
  margin: 0; padding: 1rem 1rem .7rem; min-width: 0;
  background: #ffffff; color: #5b6470; border: 1px solid var(--line); border-radius: .6rem;
}
figure svg { display: block; width: 100%; height: auto; max-width: 46rem; margin: 0 auto; }
figure img { display: block; max-width: 100%; margin: 0 auto; image-rendering: pixelated; }
figure svg * { stroke-linejoin: round; stroke-linecap: butt; }
figcaption { margin-top: .4rem; font-size: .82rem; }
details { margin: .8rem 0; padding: .6rem .9rem; }
summary { cursor: pointer; font-weight: 600; overflow-wrap: anywhere; }
details[open] > summary { margin-bottom: .7rem; }
pre { margin: 0; overflow-x: auto; font: .85rem/1.5 ui-monospace, "SF Mono", Consolas, "DejaVu Sans Mono", monospace; }
@media print {
  :root { --page: #ffffff; --card: #ffffff; --text: #000000; --quiet: #444444; --line: #cccccc; }
  body { max-width: none; padding: 0; font-size: 10pt; }
  figure, .card, tr { break-inside: avoid; }
  h2, h3 { break-after: avoid; }
  .figures { grid-template-columns: 1fr 1fr; }
  pre { white-space: pre-wrap; }
}
"""
