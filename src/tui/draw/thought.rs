//! The selected thought in full: text, score with its parts, probabilities, cost, and the prompts as sent.

use crate::base::text::sanitize;
use crate::search::event::{Author, Purpose};
use crate::search::tree::{Node, NodeId};
use crate::tui::canvas::{Canvas, Piece};
use crate::tui::run_screen::RunScreen;
use crate::tui::text::{self, display, display_line, grouped, wrap};
use crate::tui::theme::Theme;
use ratatui::layout::Rect;
use ratatui::style::Style;

/// Bytes of a prompt that are laid out; what is beyond is said.
const PROMPT_BYTES: usize = 64 << 10;

type Lines = Vec<Vec<Piece>>;

pub fn draw(canvas: &mut Canvas<'_>, run: &RunScreen, frame: Rect, inner: Rect) {
    let area = super::pad(inner);
    let lines = lines(run, canvas.theme, area.width);
    let height = usize::from(area.height);
    let top = run.thought_top.min(lines.len().saturating_sub(height));
    for (i, line) in lines.iter().skip(top).take(height).enumerate() {
        canvas.pieces(area.x, area.y + i as u16, area.width, line);
    }
    canvas.scroll_bar(frame.right() - 1, inner, top, lines.len());
}

/// All lines of the pane, `width` cells wide.
pub fn lines(run: &RunScreen, theme: &Theme, width: u16) -> Lines {
    let id = run.tree.selected();
    let node = run.state.tree.node(id);
    let width = usize::from(width.max(4));
    let mut out = Lines::new();
    head(&mut out, run, theme, node, width);
    score(&mut out, theme, node, width);
    tokens(&mut out, run, theme, id, node, width);
    running(&mut out, run, theme, id, width);
    prompts(&mut out, run, theme, id, node, width);
    out
}

fn head(out: &mut Lines, run: &RunScreen, theme: &Theme, node: &Node, width: usize) {
    let (glyph, letter, style) = theme.status(node.status);
    let status = format!("{:?}", node.status).to_lowercase();
    let by = match node.by {
        _ if node.parent.is_none() => "the puzzle",
        Author::Model => "by the model",
        Author::User => "by you",
    };
    out.push(vec![(format!("{glyph}{letter} {status}"), style), (format!("  depth {}  {by}", node.depth), theme.dim)]);
    if let Some(why) = node.why.as_deref().filter(|w| !w.is_empty()) {
        push_wrapped(out, &display(why), width, theme.dim);
    }
    match (&run.state.header, node.parent) {
        (Some(header), None) => push_wrapped(out, &display(&header.title), width, theme.strong),
        (None, None) => {}
        (_, Some(_)) => {
            push_wrapped(out, &display(&node.text), width, theme.strong);
            if node.depth > 1 {
                heading(out, theme, "so far");
                push_wrapped(out, &display(&run.state.tree.path_text(run.tree.selected())), width, theme.text);
            }
        }
    }
}

fn score(out: &mut Lines, theme: &Theme, node: &Node, width: usize) {
    let Some(score) = node.score else { return };
    out.push(vec![("score ".into(), theme.dim), (format!("{score:.3}"), theme.strong)]);
    let names = node.parts.iter().map(|p| text::width(&p.evaluator)).max().unwrap_or(0).min(width / 2);
    for part in &node.parts {
        let value = part.value.map_or("invalid".into(), |v| format!("{v:.3}"));
        let style = if part.value.is_some() { theme.text } else { theme.bad };
        let name = display_line(&part.evaluator);
        out.push(vec![
            (format!("  {name:names$} "), theme.dim),
            (value, style),
            (format!("  {}", display_line(&part.detail)), theme.dim),
        ]);
    }
}

fn tokens(out: &mut Lines, run: &RunScreen, theme: &Theme, id: NodeId, node: &Node, width: usize) {
    if let Some(logprob) = node.logprob {
        out.push(vec![
            ("log-probability ".into(), theme.dim),
            (format!("{logprob:.3}"), theme.text),
            (format!("  p {}", probability(logprob.exp())), theme.dim),
        ]);
    }
    let pieces: Vec<(String, f64)> = match run.state.pieces(id) {
        Some(pieces) => pieces.into_iter().map(|(t, l)| (visible(t), f64::from(l))).collect(),
        // Where the reply did not come in pieces, and in old records, the numbers alone are known.
        None => node.token_logprobs.iter().map(|l| (String::new(), f64::from(*l))).collect(),
    };
    if !pieces.is_empty() {
        let among = run.state.header.as_ref().is_some_and(|header| header.among_allowed);
        let title = if among { "tokens, probability among those allowed" } else { "tokens and their probability" };
        heading(out, theme, title);
        flow(out, theme, &pieces, width);
    }
    let u = node.usage;
    if u.tokens() + u.logical > 0 {
        let line = format!(
            "{} tokens: {} prompt, {} sampled, {} scored; {} logical",
            grouped(u.tokens()),
            grouped(u.prompt),
            grouped(u.sampled),
            grouped(u.scored),
            grouped(u.logical)
        );
        push_wrapped(out, &line, width, theme.dim);
    }
}

/// Token texts with their numbers, as many a line as fit.
fn flow(out: &mut Lines, theme: &Theme, pieces: &[(String, f64)], width: usize) {
    let mut line: Vec<Piece> = Vec::new();
    let mut used = 0;
    for (content, logprob) in pieces {
        let p = logprob.exp();
        let number = format!("{} ", probability(p));
        let content = text::shorten(content, width.saturating_sub(number.len() + 1), theme.glyphs.more).into_owned();
        let cells = text::width(&content) + number.len() + usize::from(!content.is_empty());
        if used + cells > width && !line.is_empty() {
            out.push(std::mem::take(&mut line));
            used = 0;
        }
        used += cells;
        if !content.is_empty() {
            line.push((content, theme.heat(p).patch(theme.strong)));
            line.push((" ".into(), theme.text));
        }
        line.push((number, theme.heat(p)));
    }
    out.push(line);
}

fn running(out: &mut Lines, run: &RunScreen, theme: &Theme, id: NodeId, width: usize) {
    for live in run.state.live.iter().filter(|l| l.node == id) {
        heading(out, theme, &format!("running: sample {} ({})", live.sample, purpose(live.purpose)));
        push_wrapped(out, &display(&live.text), width, theme.live);
    }
}

fn prompts(out: &mut Lines, run: &RunScreen, theme: &Theme, id: NodeId, node: &Node, width: usize) {
    let store = &run.state.prompts;
    let shown = [
        (node.parent, Purpose::Generate, "prompt that proposed it"),
        (Some(id), Purpose::Value, "prompt that valued it"),
        (Some(id), Purpose::Vote, "prompt that voted on it"),
        (Some(id), Purpose::Logprob, "prompt that scored it"),
        (Some(id), Purpose::Generate, "prompt that expanded it"),
    ];
    for (of, purpose, title) in shown {
        let Some(prompt) = of.and_then(|of| store.get(of, purpose)) else { continue };
        heading(out, theme, title);
        let end = (0..=PROMPT_BYTES.min(prompt.len())).rev().find(|&i| prompt.is_char_boundary(i)).unwrap_or(0);
        push_wrapped(out, &display(&prompt[..end]), width, theme.dim);
        if end < prompt.len() {
            push_wrapped(out, &format!("({} more bytes)", prompt.len() - end), width, theme.warn);
        }
    }
}

fn purpose(purpose: Purpose) -> &'static str {
    match purpose {
        Purpose::Generate => "proposal",
        Purpose::Value => "value",
        Purpose::Vote => "vote",
        Purpose::Logprob => "log-probability",
    }
}

fn heading(out: &mut Lines, theme: &Theme, title: &str) {
    out.push(vec![(format!("{} {title}", theme.glyphs.leaf), theme.accent)]);
}

fn push_wrapped(out: &mut Lines, content: &str, width: usize, style: Style) {
    out.extend(wrap(content, width).into_iter().map(|line| vec![(line.to_string(), style)]));
}

/// A token's text with its spaces and line breaks to be seen.
fn visible(token: &str) -> String {
    display_line(&sanitize(token).replace('\n', "\\n").replace(' ', "_"))
}

fn probability(p: f64) -> String {
    if p >= 0.9995 { "1.00".into() } else { format!("{p:.3}").trim_start_matches('0').to_string() }
}
