//! Where the panes stand: a pure function of the size and of what is shown, used by drawing and by the mouse alike.
//!
//! Up to 63 columns one column of panes, up to 149 two, above that three. In each column as many panes as fit stand below
//! each other in order of importance; the rest can be had by number, on the whole screen.

use ratatui::layout::Rect;

/// Smaller than this, only a note is shown.
pub const MIN_WIDTH: u16 = 20;
pub const MIN_HEIGHT: u16 = 8;
/// From this width on there are three columns.
pub const THREE_COLUMNS: u16 = 150;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Pane {
    Tree,
    Thought,
    Memory,
    Speed,
    Link,
    Search,
    Log,
}

impl Pane {
    pub const ALL: [Self; 7] =
        [Self::Tree, Self::Thought, Self::Memory, Self::Speed, Self::Link, Self::Search, Self::Log];

    pub fn number(self) -> u8 {
        self as u8 + 1
    }

    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number).checked_sub(1)?).copied()
    }

    pub fn title(self) -> &'static str {
        match self {
            Self::Tree => "Tree",
            Self::Thought => "Thought",
            Self::Memory => "Memory",
            Self::Speed => "Speed",
            Self::Link => "Link",
            Self::Search => "Search",
            Self::Log => "Log",
        }
    }

    /// Rows with the border: fewer make no sense, and more are of no use (`None`: takes whatever is left).
    fn rows(self) -> (u16, Option<u16>) {
        match self {
            Self::Tree => (5, None),
            Self::Thought => (5, None),
            Self::Memory => (5, Some(10)),
            Self::Speed => (4, Some(8)),
            Self::Link => (4, Some(6)),
            Self::Search => (5, Some(12)),
            Self::Log => (4, None),
        }
    }
}

/// What the user did to the layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wishes {
    pub zoom: Option<Pane>,
    /// One bit for each hidden pane, by [`Pane`]'s order.
    pub hidden: u8,
    /// The tree's share of the width, in percent: of two columns, and of three.
    pub tree_percent: u16,
    pub tree_percent_of_three: u16,
    pub focus: Pane,
    pub time_bar: bool,
}

impl Wishes {
    pub fn is_hidden(&self, pane: Pane) -> bool {
        self.hidden & (1 << pane as u8) != 0
    }
}

/// Where everything stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arrangement {
    pub header: Rect,
    pub panes: Vec<(Pane, Rect)>,
    pub time_bar: Option<Rect>,
    pub footer: Rect,
    /// Column of the border that can be dragged.
    pub split: Option<u16>,
}

impl Arrangement {
    pub fn of(&self, pane: Pane) -> Option<Rect> {
        self.panes.iter().find(|(p, _)| *p == pane).map(|(_, rect)| *rect)
    }

    pub fn at(&self, x: u16, y: u16) -> Option<(Pane, Rect)> {
        self.panes.iter().find(|(_, rect)| rect.contains((x, y).into())).copied()
    }
}

pub fn is_too_small(area: Rect) -> bool {
    area.width < MIN_WIDTH || area.height < MIN_HEIGHT
}

/// Lays out a screen; one that is too small has no panes.
pub fn arrange(area: Rect, wishes: &Wishes) -> Arrangement {
    if is_too_small(area) {
        let none = Rect { width: 0, height: 0, ..area };
        return Arrangement { header: none, panes: Vec::new(), time_bar: None, footer: none, split: None };
    }
    let header = Rect { height: 1, ..area };
    let footer = Rect { y: area.bottom() - 1, height: 1, ..area };
    let bar = u16::from(wishes.time_bar);
    let time_bar = wishes.time_bar.then(|| Rect { y: area.bottom() - 2, height: 1, ..area });
    let body = Rect { y: area.y + 1, height: area.height - 2 - bar, ..area };
    let shown = |panes: &[Pane]| panes.iter().copied().filter(|p| !wishes.is_hidden(*p)).collect::<Vec<_>>();
    let one = |pane| Arrangement { header, panes: vec![(pane, body)], time_bar, footer, split: None };
    if let Some(pane) = wishes.zoom {
        return one(pane);
    }
    let columns: Vec<Vec<Pane>> = if body.height < 10 {
        return one(if wishes.is_hidden(wishes.focus) { Pane::Tree } else { wishes.focus });
    } else if area.width < 64 {
        let all = [Pane::Tree, Pane::Thought, Pane::Search, Pane::Memory, Pane::Speed, Pane::Log, Pane::Link];
        // In a low column the tree needs the room more than the numbers do.
        vec![shown(&all[..if body.height < 30 { 3 } else { 7 }])]
    } else if area.width < THREE_COLUMNS {
        let tall = body.height >= 30;
        let left: &[Pane] = if tall { &[Pane::Tree, Pane::Log] } else { &[Pane::Tree] };
        let right: &[Pane] = if tall {
            &[Pane::Thought, Pane::Memory, Pane::Search, Pane::Speed, Pane::Link]
        } else {
            &[Pane::Thought, Pane::Memory, Pane::Search, Pane::Speed, Pane::Link, Pane::Log]
        };
        vec![shown(left), shown(right)]
    } else {
        vec![
            shown(&[Pane::Tree]),
            shown(&[Pane::Thought]),
            shown(&[Pane::Memory, Pane::Speed, Pane::Search, Pane::Link, Pane::Log]),
        ]
    };
    let columns: Vec<_> = columns.into_iter().filter(|c| !c.is_empty()).collect();
    if columns.is_empty() {
        return one(Pane::Tree);
    }
    let widths = column_widths(body.width, &columns, wishes);
    let mut panes = Vec::new();
    let mut x = body.x;
    for (column, width) in columns.iter().zip(&widths) {
        stack(Rect { x, width: *width, ..body }, column, &mut panes);
        x += width;
    }
    let split = (widths.len() > 1).then(|| body.x + widths[0] - 1);
    Arrangement { header, panes, time_bar, footer, split }
}

fn column_widths(width: u16, columns: &[Vec<Pane>], wishes: &Wishes) -> Vec<u16> {
    let share = |percent: u16| (u32::from(width) * u32::from(percent) / 100) as u16;
    match columns.len() {
        1 => vec![width],
        2 => {
            let first = share(wishes.tree_percent).clamp(20, width - 20);
            vec![first, width - first]
        }
        _ => {
            // Numbers need no more than 60 columns.
            let first = share(wishes.tree_percent_of_three).clamp(30, width - 80);
            let last = ((width - first) / 2).min(56);
            vec![first, width - first - last, last]
        }
    }
}

/// Puts panes below each other: as many as fit with their least height. What is left goes to those that can use it, up to
/// what they can use, the first one having half; the rest of it goes to one that can use any height, else to the first.
fn stack(area: Rect, column: &[Pane], out: &mut Vec<(Pane, Rect)>) {
    let mut chosen = Vec::new();
    let mut left = area.height;
    for &pane in column {
        let least = pane.rows().0;
        if least <= left || chosen.is_empty() {
            chosen.push((pane, least.min(left)));
            left = left.saturating_sub(least);
        }
    }
    let grow = |pane: Pane, height: &mut u16, share: u16| {
        let more = pane.rows().1.map_or(share, |most| most.saturating_sub(*height).min(share));
        *height += more;
        more
    };
    let half = if chosen.len() > 1 { left.div_ceil(2) } else { left };
    left -= grow(chosen[0].0, &mut chosen[0].1, half);
    for (pane, height) in chosen.iter_mut().skip(1) {
        let share = if pane.rows().1.is_some() { left } else { left / 2 };
        left -= grow(*pane, height, share);
    }
    // An empty hole below the panes would look broken.
    let taker = chosen.iter().position(|(pane, _)| pane.rows().1.is_none()).unwrap_or(0);
    chosen[taker].1 += left;
    let mut y = area.y;
    for (pane, height) in chosen {
        out.push((pane, Rect { y, height, ..area }));
        y += height;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wishes() -> Wishes {
        Wishes {
            zoom: None,
            hidden: 0,
            tree_percent: 55,
            tree_percent_of_three: 42,
            focus: Pane::Tree,
            time_bar: false,
        }
    }

    #[test]
    fn panes_tile_the_body_at_every_size_and_with_any_of_them_hidden() {
        for width in (MIN_WIDTH..320).step_by(7) {
            for height in (MIN_HEIGHT..110).step_by(3) {
                for hidden in 0..128 {
                    let area = Rect::new(0, 0, width, height);
                    let time_bar = hidden % 2 == 0;
                    let w = Wishes {
                        hidden,
                        tree_percent: hidden.into(),
                        tree_percent_of_three: hidden.into(),
                        time_bar,
                        ..wishes()
                    };
                    let a = arrange(area, &w);
                    let covered: u32 = a.panes.iter().map(|(_, r)| r.area()).sum();
                    let body = u32::from(width) * u32::from(height - 2 - u16::from(time_bar));
                    assert_eq!(covered, body, "{width}x{height} {hidden:b}");
                    for (i, (_, r)) in a.panes.iter().enumerate() {
                        assert_eq!(area.intersection(*r), *r);
                        assert!(a.panes[..i].iter().all(|(_, other)| !other.intersects(*r)));
                    }
                }
            }
        }
    }

    #[test]
    fn the_usual_terminal_shows_tree_thought_memory_search_and_speed() {
        let panes = |w, h| arrange(Rect::new(0, 0, w, h), &wishes()).panes.iter().map(|p| p.0).collect::<Vec<_>>();
        assert_eq!(panes(80, 24), [Pane::Tree, Pane::Thought, Pane::Memory, Pane::Search, Pane::Speed]);
        assert_eq!(panes(200, 50).len(), 7);
        assert_eq!(panes(40, 24), [Pane::Tree, Pane::Thought, Pane::Search]);
        assert_eq!(panes(30, 9), [Pane::Tree]);
    }

    #[test]
    fn zoom_gives_one_pane_the_whole_body() {
        let a = arrange(Rect::new(0, 0, 80, 24), &Wishes { zoom: Some(Pane::Log), ..wishes() });
        assert_eq!(a.panes, [(Pane::Log, Rect::new(0, 1, 80, 22))]);
    }
}
