//! One error type for the whole program: what failed, on what, what to try, and which exit code that means.

use std::fmt;

/// Which of the contract's exit codes an error ends the program with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// Usage, or input that cannot be read: strategy, data, model file. Exit code 2.
    Input,
    /// A limit of tokens, thoughts, seconds or memory. Exit code 3.
    Limit,
    /// Input/output, network, device or internal failure. Exit code 4.
    Fault,
}

/// A message for the user: a lower-case fragment that names the file, the place and the remedy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    kind: ErrorKind,
    message: String,
}

pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    pub fn input(message: impl Into<String>) -> Self {
        Self { kind: ErrorKind::Input, message: message.into() }
    }

    pub fn limit(message: impl Into<String>) -> Self {
        Self { kind: ErrorKind::Limit, message: message.into() }
    }

    pub fn fault(message: impl Into<String>) -> Self {
        Self { kind: ErrorKind::Fault, message: message.into() }
    }

    /// Puts `what` before the message: `what: message`.
    pub fn context(self, what: impl fmt::Display) -> Self {
        Self { kind: self.kind, message: format!("{what}: {}", self.message) }
    }

    /// Puts `what` after the message: `message; what`.
    pub fn after(self, what: impl fmt::Display) -> Self {
        Self { kind: self.kind, message: format!("{}; {what}", self.message) }
    }

    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    pub fn message(&self) -> &str {
        &self.message
    }

    pub fn exit_code(&self) -> u8 {
        match self.kind {
            ErrorKind::Input => 2,
            ErrorKind::Limit => 3,
            ErrorKind::Fault => 4,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

impl From<std::io::Error> for Error {
    fn from(e: std::io::Error) -> Self {
        Self::fault(e.to_string())
    }
}
