//! Filetests: a graph in the text form, with header lines that say what to test.
//!
//! ```text
//! ; Prose says why the case exists.
//! ; test print                      the text is what printing its graph gives
//! ; test verify                     the verifier accepts, or finds exactly the errors noted in the text
//! ; test run tol=nmse:1e-6          outputs are as expected; without tol, to the bit
//! ; test gradient of=y wrt=a,b      snapshot of the graph with gradients, simplified
//! ; test pass=simplify              snapshot after one pass; profile= names the device, else minimum
//! ; test fuse profile=h200          snapshot after all passes, with the decisions of the fuser
//! ; test plan profile=h200          snapshot of dispatches, barriers and offsets
//! ; test copies profile=h200        snapshot without copies of weights, and these
//! ; test remat profile=h200 budget=9000  snapshot with kernels that run again for so many bytes of intermediate values
//! ; test glsl profile=h200          snapshot of the generated kernels
//! ; symbol seq=3                    for `run`; what is not given is random
//! ; set "x" [1, 2.5, nan]           elements of an input, state or weight
//! ; expect "y" [2, 5, nan]          elements of an output, or of a state after the run
//! graph "g" {
//!   %0 = input "x" : f32[2]
//!   %1 = add %0 %0 : f32[3]         ; error: has type f32[2]
//! }
//! ```
//! Each `; error:` stands on the line that the parser blames, or the line of the node that the verifier
//! blames, and quotes a part of the message.

use std::fs;
use std::path::{Path, PathBuf};

use tallow_ir::Graph;
use tallow_ir::text::{ParseError, parse};
use tallow_reference::Array;

use crate::compare::Tolerance;
use crate::random_inputs::{Inputs, Leaf, random_inputs, with_symbols};

/// What to do with a case.
#[derive(Clone, Debug, PartialEq)]
pub enum Test {
    /// Printing and parsing are inverse.
    Print,
    /// The verifier finds what is noted.
    Verify,
    /// Outputs and states after a run.
    Run(Tolerance),
    /// Gradients: the graph that computes them, and their values. Noted errors are those of differentiating.
    Gradient {
        /// The outputs that are differentiated.
        of: Vec<String>,
        /// With respect to which leaves.
        wrt: Vec<String>,
        /// Of the expected values.
        tolerance: Tolerance,
    },
    /// One pass.
    Pass {
        /// Its name.
        name: String,
        /// Device profile.
        profile: String,
    },
    /// All passes.
    Fuse {
        /// Device profile.
        profile: String,
    },
    /// The schedule.
    Plan {
        /// Device profile.
        profile: String,
    },
    /// Snapshot of the graph whose kernels run again to fit a budget.
    Remat {
        /// Device profile.
        profile: String,
        /// The most bytes of intermediate values.
        budget: u64,
    },
    /// The graph without kernels that only copy weights, and these copies.
    Copies {
        /// Device profile.
        profile: String,
    },
    /// The kernels.
    Glsl {
        /// Device profile.
        profile: String,
        /// Of the choices that fusions have, the one of this number instead of the first.
        choice: Option<usize>,
    },
}

/// A noted error: line number from 1, and part of its message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expected {
    /// Line of the file.
    pub line: usize,
    /// Part of the message.
    pub message: String,
}

/// One file.
#[derive(Clone, Debug)]
pub struct Case {
    /// Where it lies.
    pub path: PathBuf,
    /// The whole file.
    pub text: String,
    /// What to test, in order.
    pub tests: Vec<Test>,
    /// Noted errors.
    pub errors: Vec<Expected>,
    symbols: Vec<(String, u64)>,
    set: Vec<(String, Vec<f64>)>,
    /// Expected elements of outputs or states, by name.
    pub expect: Vec<(String, Vec<f64>)>,
}

impl Case {
    /// Reads a file; panics with the line where its header makes no sense.
    pub fn read(path: &Path) -> Case {
        let text = fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let mut case = Case {
            path: path.into(),
            text: text.clone(),
            tests: vec![],
            errors: vec![],
            symbols: vec![],
            set: vec![],
            expect: vec![],
        };
        for (number, line) in (1..).zip(text.lines()) {
            if let Some((_, message)) = line.split_once("; error: ") {
                case.errors.push(Expected { line: number, message: message.trim().into() });
            } else if let Some(header) = line.strip_prefix("; ") {
                case.header(header)
                    .unwrap_or_else(|| panic!("{}:{number}: cannot read '{line}'", path.display()));
            }
        }
        assert!(!case.tests.is_empty(), "{}: no '; test' line", path.display());
        case
    }

    fn header(&mut self, line: &str) -> Option<()> {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        let rest = rest.trim();
        match word {
            "test" => self.tests.push(test(rest)?),
            "symbol" => {
                let (name, value) = rest.split_once('=')?;
                self.symbols.push((name.trim().into(), value.trim().parse().ok()?));
            }
            "set" => self.set.push(elements(rest)?),
            "expect" => self.expect.push(elements(rest)?),
            _ => {}
        }
        Some(())
    }

    /// The graph, or why it is none.
    pub fn parse(&self) -> Result<Graph, ParseError> {
        parse(&self.text)
    }

    /// The text without comments, in the form that printing gives.
    pub fn code(&self) -> String {
        let code = self.text.lines().map(|line| line.split(" ;").next().unwrap_or_default().trim_end());
        code.filter(|line| !line.is_empty() && !line.starts_with(';'))
            .map(|line| format!("{line}\n"))
            .collect()
    }

    /// Data for the leaves of `graph`: as the header says, and random for the rest.
    pub fn inputs(&self, graph: &Graph) -> Inputs {
        let mut inputs = if self.symbols.is_empty() {
            random_inputs(graph, 0)
        } else {
            with_symbols(graph, 0, self.symbols.iter().cloned().collect())
        };
        for (name, values) in &self.set {
            let leaves = [&mut inputs.inputs, &mut inputs.weights, &mut inputs.states];
            let leaf: &mut Leaf = leaves
                .into_iter()
                .find_map(|all| all.get_mut(name))
                .unwrap_or_else(|| panic!("{}: no leaf is called {name:?}", self.path.display()));
            let array = Array::from_f64s(leaf.dtype, &leaf.shape, values);
            leaf.bytes =
                array.unwrap_or_else(|e| panic!("{}: {name:?}: {e}", self.path.display())).to_bytes();
        }
        inputs
    }
}

fn test(line: &str) -> Option<Test> {
    let mut words = line.split_whitespace();
    let first = words.next()?;
    let (mut profile, mut budget) = (None, None);
    let mut tolerance = None;
    let mut choice = None;
    let (mut of, mut wrt): (Vec<String>, Vec<String>) = Default::default();
    for word in words {
        let list = |text: &str| text.split(',').map(String::from).collect();
        match word.split_once('=')? {
            ("of", text) if first == "gradient" => of = list(text),
            ("wrt", text) if first == "gradient" => wrt = list(text),
            ("profile", name) => profile = Some(name.to_string()),
            ("budget", bytes) => budget = Some(bytes.parse().ok()?),
            ("tol", text) => tolerance = Some(Tolerance::parse(text)?),
            ("choice", number) if first == "glsl" => choice = Some(number.parse().ok()?),
            _ => return None,
        }
    }
    match (first, first.strip_prefix("pass="), profile, tolerance) {
        ("print", _, None, None) => Some(Test::Print),
        ("verify", _, None, None) => Some(Test::Verify),
        ("run", _, None, tolerance) => Some(Test::Run(tolerance.unwrap_or(Tolerance::Bits))),
        ("gradient", _, None, tolerance) if !of.is_empty() && !wrt.is_empty() => {
            Some(Test::Gradient { of, wrt, tolerance: tolerance.unwrap_or(Tolerance::Values) })
        }
        ("fuse", _, Some(profile), None) => Some(Test::Fuse { profile }),
        ("plan", _, Some(profile), None) => Some(Test::Plan { profile }),
        ("copies", _, Some(profile), None) => Some(Test::Copies { profile }),
        ("remat", _, Some(profile), None) => Some(Test::Remat { profile, budget: budget? }),
        ("glsl", _, Some(profile), None) => Some(Test::Glsl { profile, choice }),
        (_, Some(name), profile, None) => {
            let profile = profile.unwrap_or_else(|| "minimum".into());
            Some(Test::Pass { name: name.into(), profile })
        }
        _ => None,
    }
}

/// `"name" [1, 2.5, nan]`.
fn elements(text: &str) -> Option<(String, Vec<f64>)> {
    // Names come as in the graph; none holds a quote in practice.
    let (name, list) = text.strip_prefix('"')?.split_once('"')?;
    let list = list.trim().strip_prefix('[')?.strip_suffix(']')?;
    let values = list.split(',').map(str::trim).filter(|x| !x.is_empty()).map(|x| x.parse().ok());
    Some((name.into(), values.collect::<Option<_>>()?))
}

/// All filetests below `folder`, by path.
pub fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = vec![];
    let entries = fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    for entry in entries {
        let path = entry.expect("a folder that can be listed").path();
        if path.is_dir() {
            found.extend(files(&path));
        } else if path.extension().is_some_and(|e| e == "ir") {
            found.push(path);
        }
    }
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_read_or_refused() {
        assert_eq!(test("run"), Some(Test::Run(Tolerance::Bits)));
        assert_eq!(test("run tol=nmse:1e-6"), Some(Test::Run(Tolerance::Nmse(1e-6))));
        let pass = |profile: &str| Some(Test::Pass { name: "fuse".into(), profile: profile.into() });
        assert_eq!(test("pass=fuse"), pass("minimum"));
        assert_eq!(test("pass=fuse profile=h200"), pass("h200"));
        let names = |all: &[&str]| all.iter().map(|name| name.to_string()).collect();
        let (of, wrt) = (names(&["y"]), names(&["a", "b"]));
        let gradient = Test::Gradient { of, wrt, tolerance: Tolerance::Values };
        assert_eq!(test("gradient of=y wrt=a,b"), Some(gradient));
        for bad in ["", "runs", "plan", "run tol=1", "print tol=bits", "fuse profile", "run profile=h200"] {
            assert_eq!(test(bad), None, "{bad}");
        }
        for bad in ["gradient", "gradient of=y", "run of=y"] {
            assert_eq!(test(bad), None, "{bad}");
        }
        assert_eq!(elements("\"x\" [1, -2.5, inf]"), Some(("x".into(), vec![1.0, -2.5, f64::INFINITY])));
        assert_eq!(elements("\"x\" []"), Some(("x".into(), vec![])));
        for bad in ["x [1]", "\"x\" 1", "\"x\" [a]"] {
            assert_eq!(elements(bad), None, "{bad}");
        }
    }
}
