// SPDX-License-Identifier: Apache-2.0
//! `agewise` with one policy more.

use std::process::ExitCode;

fn main() -> ExitCode {
    match agewise_lab::yardstick::register(&my_policy::SPEC) {
        Ok(()) => agewise::main(),
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
