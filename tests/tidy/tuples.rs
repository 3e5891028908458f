//! Tuples where names would read better: unrelated variables bound by one `let`, and parameters.

use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use crate::files::File;
use crate::functions;

/// Tuples that were found in one file.
#[derive(Debug, Default)]
pub(crate) struct Tuples {
    /// `let (a, b) = (x, y)`: several statements in one.
    pub(crate) packed_lets: Vec<Tuple>,
    /// Parameters that are tuples, or taken apart as tuples.
    pub(crate) parameters: Vec<Tuple>,
}

/// Tuple where names would read better.
#[derive(Debug)]
pub(crate) struct Tuple {
    /// Line on which it starts, counted from 1.
    pub(crate) line: usize,
    /// Number of its elements.
    pub(crate) elements: usize,
    /// Source text of the tuple, on one line.
    pub(crate) text: String,
}

impl Tuple {
    fn new(spanned: &impl Spanned, elements: usize) -> Self {
        let span = spanned.span();
        let source = span.source_text().unwrap_or_default();
        let text = source.split_whitespace().collect::<Vec<_>>().join(" ");
        Self { line: span.start().line, elements, text }
    }
}

/// Looks through a Rust file; finds nothing in any other, and in one that cannot be parsed.
pub(crate) fn of(file: &File) -> Tuples {
    let mut tuples = Tuples::default();
    if file.extension() == "rs"
        && let Ok(parsed) = functions::parse(file)
    {
        tuples.visit_file(&parsed);
    }
    tuples
}

impl<'ast> Visit<'ast> for Tuples {
    /// `let ... else` is left out: a match on several values at once has a reason to be a tuple.
    fn visit_local(&mut self, local: &'ast syn::Local) {
        if let Some(init) = &local.init
            && init.diverge.is_none()
            && let Some(elements) = pattern_elements(&local.pat)
            && matches!(&*init.expr, syn::Expr::Tuple(_))
        {
            self.packed_lets.push(Tuple::new(local, elements));
        }
        visit::visit_local(self, local);
    }

    /// Closures are left out: they take what an iterator yields.
    fn visit_signature(&mut self, signature: &'ast syn::Signature) {
        for input in &signature.inputs {
            if let syn::FnArg::Typed(parameter) = input
                && let Some(elements) =
                    pattern_elements(&parameter.pat).or_else(|| type_elements(&parameter.ty))
            {
                self.parameters.push(Tuple::new(parameter, elements));
            }
        }
        visit::visit_signature(self, signature);
    }
}

fn pattern_elements(pattern: &syn::Pat) -> Option<usize> {
    match pattern {
        syn::Pat::Tuple(tuple) => Some(tuple.elems.len()),
        syn::Pat::Type(typed) => pattern_elements(&typed.pat),
        syn::Pat::Reference(reference) => pattern_elements(&reference.pat),
        _ => None,
    }
}

fn type_elements(ty: &syn::Type) -> Option<usize> {
    match ty {
        syn::Type::Tuple(tuple) if !tuple.elems.is_empty() => Some(tuple.elems.len()),
        syn::Type::Reference(reference) => type_elements(&reference.elem),
        syn::Type::Paren(paren) => type_elements(&paren.elem),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Tuples {
        of(&File::sample("a.rs", text))
    }

    fn body(statement: &str) -> Tuples {
        found(&format!("fn a() {{\n    {statement}\n}}\n"))
    }

    #[test]
    fn packed_lets_are_found() {
        for (statement, elements) in [
            ("let (a, b) = (x, y);", 2),
            ("let (mut a, b, _) = (x,\n y(), 3);", 3),
            ("let (a, b): (u8, u8) = (1, 2);", 2),
            ("if c { let (a, b) = (x, y); }", 2),
            ("let f = || { let (a, b) = (x, y); };", 2),
        ] {
            let lets = body(statement).packed_lets;
            assert_eq!(lets.len(), 1, "{statement}");
            assert_eq!((lets[0].line, lets[0].elements), (2, elements), "{statement}");
        }
        assert_eq!(
            body("let (a, b) = (x,\n        y);").packed_lets[0].text,
            "let (a, b) = (x, y);"
        );
    }

    #[test]
    fn other_lets_are_not() {
        for statement in [
            "let (a, b) = split(x);",
            "let a = (x, y);",
            "let (Some(a), Some(b)) = (x, y) else { return };",
            "if let (Some(a), Some(b)) = (x, y) {}",
            "(a, b) = (b, a);",
        ] {
            assert_eq!(body(statement).packed_lets.len(), 0, "{statement}");
        }
    }

    #[test]
    fn parameters_that_are_tuples_are_found() {
        for text in [
            "fn a((b, c): (u8, u16)) {}",
            "fn a(x: u8, pair: (u8, u16)) {}",
            "fn a(pair: &mut (u8, u16)) {}",
            "fn a(&(b, c): &Pair) {}",
            "impl A { fn a(&self, pair: (u8, u16)) {} }",
            "trait A { fn a(pair: (u8, u16)); }",
        ] {
            let parameters = found(text).parameters;
            assert_eq!(parameters.len(), 1, "{text}");
            assert_eq!(parameters[0].elements, 2, "{text}");
        }
        assert_eq!(found("fn a(\n    b: (u8,\n u16)) {}").parameters[0].text, "b: (u8, u16)");
    }

    #[test]
    fn other_parameters_are_not() {
        for text in [
            "fn a(self, b: u8) -> (u8, u16) {}",
            "fn a(unit: ()) {}",
            "fn a(rows: &[(u8, u16)]) {}",
            "fn a(b: impl Fn((u8, u16))) {}",
            "fn a() { b(|(c, d)| c + d) }",
        ] {
            assert_eq!(found(text).parameters.len(), 0, "{text}");
        }
    }
}
