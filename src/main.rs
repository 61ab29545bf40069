//! The `totara` program: everything is in the library.

fn main() -> std::process::ExitCode {
    totara::cli::main()
}
