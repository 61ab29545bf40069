//! What clicks, drags and the wheel do. Positions may lie outside everything, as they do while a window shrinks.

use super::app::{App, Screen};
use super::draw;
use super::keys::Action;
use super::layout::{Pane, THREE_COLUMNS};
use super::popup::Popup;
use super::tree_view::Follow;
use crossterm::event::{MouseButton, MouseEvent, MouseEventKind};
use ratatui::layout::Rect;

/// Rows one notch of the wheel scrolls.
const WHEEL_ROWS: isize = 3;

impl App {
    pub fn mouse_event(&mut self, mouse: MouseEvent) {
        let wheel = match mouse.kind {
            MouseEventKind::ScrollDown => WHEEL_ROWS,
            MouseEventKind::ScrollUp => -WHEEL_ROWS,
            _ => 0,
        };
        let pressed = matches!(mouse.kind, MouseEventKind::Down(_));
        match self.popup.as_mut() {
            Some(Popup::Help { top } | Popup::Compare { top, .. }) => {
                *top = top.saturating_add_signed(wheel);
                if pressed {
                    self.close_popup();
                }
                return;
            }
            Some(Popup::Banner) => {
                if pressed {
                    self.close_popup();
                }
                return;
            }
            Some(_) => return,
            None => {}
        }
        match self.screen {
            Screen::Start => {
                if wheel != 0 {
                    self.start.down(wheel.signum());
                } else if pressed {
                    self.click_start(mouse.column, mouse.row);
                }
            }
            Screen::Loading(_) => {}
            Screen::Run => self.mouse_on_run(mouse, wheel),
        }
    }

    fn click_start(&mut self, x: u16, y: u16) {
        let places = draw::start::places(&self.start, self.area);
        let Some(place) = places.iter().find(|p| p.area.contains((x, y).into())) else { return };
        let again = self.start.focus == place.line;
        self.start.focus = place.line;
        use super::start::Line;
        match (place.line, place.item) {
            (Line::Strategy, Some(i)) => {
                if let Some(name) = self.start.strategies().get(i).map(|s| s.name.clone()) {
                    self.start.strategy = name;
                }
            }
            (Line::Model, Some(i)) => {
                if let Some(name) = self.start.models().get(i).map(|m| m.name.clone()) {
                    self.start.model = name;
                }
            }
            (Line::Runs, Some(i)) => self.start.run = i,
            (Line::Task | Line::Source, _) if again => self.start.change(1),
            _ => {}
        }
    }

    fn mouse_on_run(&mut self, mouse: MouseEvent, wheel: isize) {
        let (x, y) = (mouse.column, mouse.row);
        let Some(arrangement) = self.arrangement() else { return };
        let width = self.area.width;
        let Some(run) = self.run.as_mut() else { return };
        if let Some(bar) = arrangement.time_bar
            && bar.contains((x, y).into())
            && matches!(mouse.kind, MouseEventKind::Down(_) | MouseEventKind::Drag(_))
            && let Some(replay) = run.replay.as_mut()
        {
            let target = (usize::from(x - bar.x) * replay.len()).div_ceil(usize::from(bar.width.max(2) - 1));
            replay.jump(&mut run.state, target);
            return;
        }
        match mouse.kind {
            MouseEventKind::Up(_) => {
                run.dragging = false;
                return;
            }
            MouseEventKind::Drag(MouseButton::Left) if run.dragging => {
                let percent = (u32::from(x) + 1).saturating_mul(100).div_ceil(u32::from(width.max(1)));
                let percent = percent.clamp(15, 85) as u16;
                if width < THREE_COLUMNS {
                    run.wishes.tree_percent = percent;
                } else {
                    run.wishes.tree_percent_of_three = percent;
                }
                return;
            }
            MouseEventKind::Down(MouseButton::Left)
                if arrangement.split.is_some_and(|split| x == split || x == split + 1) =>
            {
                run.dragging = true;
                return;
            }
            _ => {}
        }
        let Some((pane, area)) = arrangement.at(x, y) else { return };
        if wheel != 0 {
            self.wheel(pane, area, wheel);
        } else if let MouseEventKind::Down(button) = mouse.kind {
            run.wishes.focus = pane;
            let inside = y > area.top() && y + 1 < area.bottom();
            let line = usize::from(y.saturating_sub(area.y + 1));
            match pane {
                Pane::Tree if inside => {
                    let row = run.tree.top() + line;
                    if row < run.tree.rows().len() {
                        run.tree.select_row(row, &run.state);
                        if button == MouseButton::Right {
                            self.act(Action::ToggleFold);
                        }
                    }
                }
                Pane::Log if inside => {
                    let shown = draw::log::shown(run, usize::from(area.height.saturating_sub(2)));
                    let node = run.state.log.get(shown.start + line).filter(|_| shown.start + line < shown.end);
                    if let Some(node) = node.and_then(|l| l.node) {
                        run.tree.follow = Follow::Stay;
                        run.tree.go(&run.state, node);
                    }
                }
                _ => {}
            }
        }
    }

    fn wheel(&mut self, pane: Pane, area: Rect, by: isize) {
        let Some(run) = self.run.as_mut() else { return };
        let height = usize::from(area.height.saturating_sub(2));
        match pane {
            Pane::Thought => {
                run.thought_top = run.thought_top.saturating_add_signed(by);
                self.clamp_thought();
            }
            Pane::Log => {
                run.log_back = run.log_back.saturating_add_signed(-by).min(run.state.log.len().saturating_sub(1));
            }
            _ => run.tree.scroll(by, height.max(1)),
        }
    }
}
