//! Against the formula, finite differences, f64 on rounded inputs, and numbers of threads.

use device::Allocator;
use half::bf16;

use super::{LOGITS_BYTES, Shape, Workspace, chunk_tokens};
use crate::ops::matmul::{self, Sums, kernels};
use crate::ops::testing::{check_gradient, inner, on_threads, relative_error, uniform};
use crate::ops::{Element, Float};

const WIDTH: usize = 6;

fn targets(tokens: usize, vocabulary: usize) -> Vec<u32> {
    (0..tokens).map(|i| (i * i * 7 % vocabulary) as u32).collect()
}

struct Outcome<E: Element> {
    loss: f64,
    dhidden: Vec<E>,
    dtable: Vec<E::Wide>,
}

fn run<E: Element>(hidden: &[E], table: &[E], targets: &[u32], scale: f64) -> Outcome<E> {
    run_in(matmul::Workspace::new(&Allocator::host(), 2), hidden, table, targets, scale)
}

fn run_in<E: Element>(
    mut products: matmul::Workspace<E>,
    hidden: &[E],
    table: &[E],
    targets: &[u32],
    scale: f64,
) -> Outcome<E> {
    let mut workspace = Workspace::new(&Allocator::host(), targets.len(), table.len() / WIDTH);
    let products = &mut products;
    let workspace = &mut workspace;
    let shape = Shape { tokens: targets.len(), width: WIDTH, vocabulary: table.len() / WIDTH };
    super::logits(workspace, hidden, table, shape, products);
    let loss = super::loss(workspace, targets, shape);
    super::to_gradient(workspace, targets, E::Wide::from_f64(scale), shape);
    let mut dhidden = hidden.to_vec();
    super::hidden_gradient(&mut dhidden, table, shape, workspace, products);
    let mut dtable = vec![E::Wide::from_f64(f64::NAN); table.len()];
    super::table_gradient(&mut dtable, Sums::Write, hidden, shape, workspace, products);
    Outcome { loss, dhidden, dtable }
}

/// The formula in f64, with each logit changed by `round`; `scale` times the gradients.
fn formula(
    (hidden, table): (&[f64], &[f64]),
    targets: &[u32],
    scale: f64,
    round: impl Fn(f64) -> f64,
) -> Outcome<f64> {
    let mut found =
        Outcome { loss: 0.0, dhidden: vec![0.0; hidden.len()], dtable: vec![0.0; table.len()] };
    let tokens = hidden.chunks(WIDTH).zip(found.dhidden.chunks_mut(WIDTH)).zip(targets);
    for ((hidden, dhidden), &target) in tokens {
        let logits: Vec<f64> = table.chunks(WIDTH).map(|row| round(inner(hidden, row))).collect();
        let largest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = logits.iter().map(|logit| (logit - largest).exp()).sum();
        found.loss += largest + sum.ln() - logits[target as usize];
        let rows = table.chunks(WIDTH).zip(found.dtable.chunks_mut(WIDTH));
        for (id, (logit, (row, drow))) in logits.iter().zip(rows).enumerate() {
            let hit = f64::from(u8::from(id == target as usize));
            let dlogit = scale * ((logit - largest).exp() / sum - hit);
            for column in 0..WIDTH {
                dhidden[column] += dlogit * row[column];
                drow[column] += dlogit * hidden[column];
            }
        }
    }
    found
}

fn naive(hidden: &[f64], table: &[f64], targets: &[u32]) -> f64 {
    formula((hidden, table), targets, 1.0, |logit| logit).loss
}

#[test]
fn agrees_with_the_formula_and_finite_differences() {
    for (tokens, vocabulary) in [(1, 2), (7, 37), (33, 130)] {
        let hidden: Vec<f64> = uniform(tokens * WIDTH, 1);
        let table: Vec<f64> = uniform(vocabulary * WIDTH, 2);
        let targets = targets(tokens, vocabulary);
        let found = run(&hidden, &table, &targets, 0.5);
        let exact = naive(&hidden, &table, &targets);
        assert!((found.loss - exact).abs() < 1e-12 * exact, "{} {exact}", found.loss);
        let loss = |hidden: &[f64], table: &[f64]| 0.5 * naive(hidden, table, &targets);
        check_gradient("hidden", &hidden, &found.dhidden, |hidden| loss(hidden, &table));
        check_gradient("table", &table, &found.dtable, |table| loss(&hidden, table));
    }
}

/// Number of ids such that a part has several tiles, in which the largest logit so far changes.
const MANY: usize = 5000;

#[test]
fn large_logits_in_f32_stay_exact() {
    for vocabulary in [300, MANY] {
        large_logits_stay_exact(vocabulary);
    }
}

fn large_logits_stay_exact(vocabulary: usize) {
    let tokens = 64 + 40; // a whole tile and a part of one
    let hidden: Vec<f64> = uniform(tokens * WIDTH, 1);
    let table: Vec<f64> = uniform(vocabulary * WIDTH, 2);
    let large = |x: &[f64]| x.iter().map(|x| (x * 16.0) as f32).collect::<Vec<f32>>();
    let hidden = large(&hidden);
    let table = large(&table);
    let wide = |x: &[f32]| x.iter().map(|&x| f64::from(x)).collect::<Vec<f64>>();
    let targets = targets(tokens, vocabulary);
    let found = run(&hidden, &table, &targets, 1.0);
    let exact = run(&wide(&hidden), &wide(&table), &targets, 1.0);
    let formula = naive(&wide(&hidden), &wide(&table), &targets);
    assert!((exact.loss - formula).abs() < 1e-12 * formula, "{} {formula}", exact.loss);
    assert!((found.loss - exact.loss).abs() < 1e-5 * exact.loss);
    assert!(relative_error(&found.dhidden, &exact.dhidden) < 1e-4);
    assert!(relative_error(&found.dtable, &exact.dtable) < 1e-4);
}

#[test]
fn threads_do_not_change_a_bit() {
    let hidden: Vec<f32> = uniform(70 * WIDTH, 1);
    let table: Vec<f32> = uniform(200 * WIDTH, 2);
    let targets = targets(70, 200);
    let run = |threads| on_threads(threads, || run(&hidden, &table, &targets, 1.0));
    let one = run(1);
    let three = run(3);
    assert_eq!(one.loss.to_bits(), three.loss.to_bits());
    assert!(one.dhidden == three.dhidden && one.dtable == three.dtable);
}

#[test]
fn a_logit_that_is_not_a_number_shows_in_the_loss() {
    let mut hidden: Vec<f32> = uniform(7 * WIDTH, 1);
    hidden[3 * WIDTH] = f32::NAN;
    let table: Vec<f32> = uniform(37 * WIDTH, 2);
    assert!(run(&hidden, &table, &targets(7, 37), 1.0).loss.is_nan());
    hidden[3 * WIDTH] = 0.5;
    let mut table: Vec<f32> = uniform(MANY * WIDTH, 2);
    table[(MANY / 64 + 40) * WIDTH] = f32::NAN;
    assert!(run(&hidden, &table, &targets(7, MANY), 1.0).loss.is_nan());
}

#[test]
fn chunks_cover_a_batch_within_their_memory() {
    assert_eq!(chunk_tokens::<f32>(2048, 50257, LOGITS_BYTES), 1024);
    assert_eq!(chunk_tokens::<f32>(14, 37, LOGITS_BYTES), 14);
    assert_eq!(chunk_tokens::<f32>(1 << 20, 50257, LOGITS_BYTES), 1280);
    assert_eq!(chunk_tokens::<bf16>(1 << 20, 50257, LOGITS_BYTES), 2624);
}

fn wide<E: Element>(values: &[E]) -> Vec<f64> {
    values.iter().map(|value| value.widen().to_f64()).collect()
}

/// Logits, dlogits and dH are rounded to bf16, nothing else.
///
/// Inputs are sixteenths, so that every wide sum of their products is exact in any order: no kernel
/// may round a logit the other way than the formula.
#[test]
fn bf16_agrees_with_f64_also_where_it_must_be_widened() {
    let kernels = kernels::pairs().iter().chain(kernels::singles());
    let shapes = [(64, 1700), (33, 130), (7, 37), (9, 41)];
    for (kernel, (tokens, vocabulary)) in kernels.zip(shapes.into_iter().cycle()) {
        let sixteenth = |value: f32| bf16::narrow((value * 16.0).round() / 16.0);
        let sixteenths = |values: Vec<f32>| values.into_iter().map(sixteenth).collect::<Vec<_>>();
        let hidden = sixteenths(uniform(tokens * WIDTH, 1));
        let table = sixteenths(uniform(vocabulary * WIDTH, 2));
        let targets = targets(tokens, vocabulary);
        let found = run_in(
            matmul::Workspace::with_kernel(&Allocator::host(), 3, kernel),
            &hidden,
            &table,
            &targets,
            0.5,
        );
        let rounded = |logit: f64| f64::from(bf16::narrow(logit as f32).widen());
        let exact = formula((&wide(&hidden), &wide(&table)), &targets, 0.5, rounded);
        assert!((found.loss - exact.loss).abs() < 1e-6 * exact.loss, "{kernel:?}");
        let error = relative_error(&wide(&found.dhidden), &exact.dhidden);
        assert!(error < 4e-3, "dH with {kernel:?}: {error:e}");
        let error = relative_error(&wide(&found.dtable), &exact.dtable);
        assert!(error < 4e-3, "dW with {kernel:?}: {error:e}");
    }
}

#[test]
fn the_gradient_of_the_table_accumulates() {
    let hidden: Vec<f64> = uniform(7 * WIDTH, 1);
    let table: Vec<f64> = uniform(37 * WIDTH, 2);
    let targets = targets(7, 37);
    let once = run(&hidden, &table, &targets, 1.0);
    let workspace = &mut Workspace::new(&Allocator::host(), 7, 37);
    let products = &mut matmul::Workspace::new(&Allocator::host(), 1);
    let shape = Shape { tokens: 7, width: WIDTH, vocabulary: 37 };
    super::logits(workspace, &hidden, &table, shape, products);
    super::loss(workspace, &targets, shape);
    super::to_gradient(workspace, &targets, 1.0, shape);
    let mut dtable = once.dtable.clone();
    super::table_gradient(&mut dtable, Sums::Add, &hidden, shape, workspace, products);
    let twice: Vec<f64> = once.dtable.iter().map(|sum| 2.0 * sum).collect();
    assert!(relative_error(&dtable, &twice) < 1e-14);
}

fn products_take_what_is_planned<E: Element>() {
    const TOKENS: usize = 70;
    const VOCABULARY: usize = 900;
    const WIDTH: usize = 1600; // so long that in bf16 sums of logits and dH are buffered
    let hidden = vec![E::ZERO; TOKENS * WIDTH];
    let table = vec![E::ZERO; VOCABULARY * WIDTH];
    let targets = targets(TOKENS, VOCABULARY);
    let shape = Shape { tokens: TOKENS, width: WIDTH, vocabulary: VOCABULARY };
    let host = Allocator::host();
    let workspace = &mut Workspace::new(&host, TOKENS, VOCABULARY);
    let products = &mut matmul::Workspace::new(&host, 3);
    super::logits(workspace, &hidden, &table, shape, products);
    super::loss(workspace, &targets, shape);
    super::to_gradient(workspace, &targets, E::Wide::ONE, shape);
    super::hidden_gradient(&mut hidden.clone(), &table, shape, workspace, products);
    let mut dtable = vec![E::Wide::ZERO; table.len()];
    super::table_gradient(&mut dtable, Sums::Write, &hidden, shape, workspace, products);

    let counting = Allocator::counting();
    let extents = Workspace::<E>::products(shape);
    matmul::Workspace::<E>::for_products(&counting, 3, &extents);
    assert_eq!(products.bytes() as u64, counting.total_bytes());
}

#[test]
fn products_take_the_memory_that_is_planned() {
    products_take_what_is_planned::<f32>();
    products_take_what_is_planned::<bf16>();
}
