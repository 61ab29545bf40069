#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| totara::fuzzing::run("results", bytes));
