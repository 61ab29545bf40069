//! The start screen's state: what can be chosen, what is chosen, and what stands in the way.

mod keys;

use super::field::Field;
use super::{Choice, ModelItem, RunItem, Source, StrategyItem, TaskItem};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Everything there is to choose from.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Catalog {
    pub tasks: Vec<TaskItem>,
    pub strategies: BTreeMap<String, Vec<StrategyItem>>,
    pub models: Vec<ModelItem>,
    pub runs: Vec<RunItem>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SourceKind {
    Generated,
    Typed,
    File,
}

impl SourceKind {
    pub const ALL: [Self; 3] = [Self::Generated, Self::Typed, Self::File];

    pub fn name(self) -> &'static str {
        match self {
            Self::Generated => "generated",
            Self::Typed => "typed in",
            Self::File => "from a file",
        }
    }
}

/// A line of the form that can have the focus.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Line {
    Task,
    Source,
    Size,
    Seed,
    Text,
    File,
    FileId,
    Strategy,
    Model,
    Runs,
}

/// What a key on the form led to.
#[derive(Debug, PartialEq)]
pub enum Outcome {
    /// Nothing, or a change that the picture shows.
    Handled,
    /// Not the form's business.
    Ignored,
    Start(Choice),
    Open(String),
}

#[derive(Clone)]
pub struct Start {
    pub catalog: Option<Catalog>,
    pub focus: Line,
    pub task: String,
    pub source: SourceKind,
    pub size: Field,
    pub seed: Field,
    pub text: Field,
    pub file: Field,
    pub file_id: Field,
    pub strategy: String,
    pub model: String,
    pub run: usize,
    /// The puzzle as its task shows it, or why there is none.
    pub preview: Option<Result<String, String>>,
    /// Why the last start failed.
    pub error: Option<String>,
    previewed: Option<Choice>,
    /// Enter was pressed before the lists were there.
    haste: bool,
    /// Which question the answer is to; older answers are dropped.
    pub question: u64,
}

impl Default for Start {
    fn default() -> Self {
        Self {
            catalog: None,
            focus: Line::Task,
            task: String::new(),
            source: SourceKind::Generated,
            size: Field::line("8"),
            seed: Field::line("0"),
            text: Field::lines(""),
            file: Field::line(""),
            file_id: Field::line(""),
            strategy: String::new(),
            model: String::new(),
            run: 0,
            preview: None,
            error: None,
            previewed: None,
            haste: false,
            question: 0,
        }
    }
}

impl Start {
    pub fn with_seed(seed: u64) -> Self {
        Self { seed: Field::line(&seed.to_string()), ..Self::default() }
    }

    /// Whether Enter was pressed before the lists were there, and no other key after it.
    pub fn take_haste(&mut self) -> bool {
        std::mem::take(&mut self.haste)
    }

    /// Shows a choice, as after "other strategy".
    pub fn show(&mut self, choice: &Choice) {
        self.task.clone_from(&choice.task);
        self.strategy.clone_from(&choice.strategy);
        self.model.clone_from(&choice.model);
        match &choice.source {
            Source::Generated { size, seed } => {
                self.source = SourceKind::Generated;
                self.size.set(&size.to_string());
                self.seed.set(&seed.to_string());
            }
            Source::Typed(text) => {
                self.source = SourceKind::Typed;
                self.text.set(text);
            }
            Source::File { path, id } => {
                self.source = SourceKind::File;
                self.file.set(&path.to_string_lossy());
                self.file_id.set(id.as_deref().unwrap_or(""));
            }
        }
        self.focus = Line::Strategy;
        self.fill_in();
    }

    /// Takes new lists; what is chosen stays chosen where it still exists.
    pub fn take(&mut self, catalog: Catalog) {
        self.catalog = Some(catalog);
        self.fill_in();
    }

    pub fn take_strategies(&mut self, task: String, items: Vec<StrategyItem>) {
        if let Some(catalog) = &mut self.catalog {
            catalog.strategies.insert(task, items);
            self.fill_in();
        }
    }

    pub fn strategies(&self) -> &[StrategyItem] {
        self.catalog.as_ref().and_then(|c| c.strategies.get(&self.task)).map_or(&[], Vec::as_slice)
    }

    pub fn models(&self) -> &[ModelItem] {
        self.catalog.as_ref().map_or(&[], |c| &c.models)
    }

    pub fn runs(&self) -> &[RunItem] {
        self.catalog.as_ref().map_or(&[], |c| &c.runs)
    }

    pub fn task_item(&self) -> Option<&TaskItem> {
        self.catalog.as_ref()?.tasks.iter().find(|t| t.name == self.task)
    }

    /// The lines of the form, from the top.
    pub fn lines(&self) -> Vec<Line> {
        let mut lines = vec![Line::Task, Line::Source];
        lines.extend_from_slice(match self.source {
            SourceKind::Generated => &[Line::Size, Line::Seed],
            SourceKind::Typed => &[Line::Text],
            SourceKind::File => &[Line::File, Line::FileId],
        });
        lines.extend([Line::Strategy, Line::Model]);
        if !self.runs().is_empty() {
            lines.push(Line::Runs);
        }
        lines
    }

    /// The choice as it stands, or what is missing.
    pub fn choice(&self) -> Result<Choice, String> {
        let number = |field: &Field, what: &str| {
            field.text().trim().parse::<u64>().map_err(|_| format!("{what} is a whole number, not `{}`", field.text()))
        };
        let source = match self.source {
            SourceKind::Generated => Source::Generated {
                size: number(&self.size, "the size")? as usize,
                seed: number(&self.seed, "the seed")?,
            },
            SourceKind::Typed if self.text.text().trim().is_empty() => {
                let forms = self.task_item().map(|t| format!(": {}", t.input_forms)).unwrap_or_default();
                return Err(format!("type a puzzle{forms}"));
            }
            SourceKind::Typed => Source::Typed(self.text.text()),
            SourceKind::File if self.file.is_empty() => return Err("type the path of a data file".into()),
            SourceKind::File => Source::File {
                path: PathBuf::from(self.file.text()),
                id: Some(self.file_id.text()).filter(|id| !id.trim().is_empty()),
            },
        };
        if self.task.is_empty() {
            return Err("there is no task to choose".into());
        }
        Ok(Choice { task: self.task.clone(), source, strategy: self.strategy.clone(), model: self.model.clone() })
    }

    /// A choice whose puzzle is not shown yet, with the number of the question; asks for each only once.
    pub fn wants_preview(&mut self) -> Option<(u64, Choice)> {
        self.catalog.as_ref()?;
        match self.choice() {
            Err(why) => {
                self.previewed = None;
                self.preview = Some(Err(why));
                None
            }
            Ok(choice) => {
                let same = |a: &Choice, b: &Choice| a.task == b.task && a.source == b.source;
                if self.previewed.as_ref().is_some_and(|p| same(p, &choice)) {
                    return None;
                }
                self.previewed = Some(choice.clone());
                self.question += 1;
                Some((self.question, choice))
            }
        }
    }

    /// Chooses what is not chosen, and what no longer exists, anew: the defaults.
    fn fill_in(&mut self) {
        let Some(catalog) = &self.catalog else { return };
        if !catalog.tasks.iter().any(|t| t.name == self.task) {
            self.task = catalog.tasks.first().map(|t| t.name.clone()).unwrap_or_default();
            if let Some(task) = catalog.tasks.first() {
                self.size = Field::line(&task.default_size.to_string());
            }
        }
        let strategies = catalog.strategies.get(&self.task).map_or(&[] as &[_], Vec::as_slice);
        if !strategies.iter().any(|s| s.name == self.strategy) && !self.strategy_is_a_file() {
            let default = catalog.tasks.iter().find(|t| t.name == self.task).map(|t| t.default_strategy.as_str());
            let found = strategies.iter().find(|s| Some(s.name.as_str()) == default).or(strategies.first());
            self.strategy = found.map(|s| s.name.clone()).unwrap_or_default();
        }
        // A model given as a path is in no list and stays.
        if self.model.is_empty() {
            self.model = catalog.models.first().map(|m| m.name.clone()).unwrap_or_default();
        }
    }

    /// A strategy given as a path is in no list and stays.
    fn strategy_is_a_file(&self) -> bool {
        self.strategy.contains(['/', '.'])
    }
}
