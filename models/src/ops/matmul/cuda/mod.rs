//! Products on a CUDA device, by cuBLASLt.
//!
//! cuBLASLt addresses matrices by columns: a matrix of rows is its transpose there, so Y = X W^T of
//! rows is computed as Y^T = W X^T of columns. Each shape has one plan, made once: the first
//! algorithm that the library offers, among those that add in a fixed order, or the fastest of
//! several (`tuning.rs`). Where it offers none for a product with its epilogue, kernels compute a
//! part of the epilogue after the product.

mod bias;
mod descriptors;
mod linear;
mod product;
mod tuning;

#[cfg(test)]
pub(crate) use bias::AddBias;
pub(crate) use linear::{Epilogues, Extras, LinearProducts};
pub(crate) use product::{Blas, Epilogue, Product};
