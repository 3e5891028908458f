//! From a URL and the environment to a client.
//!
//! S3: `AWS_ENDPOINT_URL` (or `AWS_ENDPOINT_URL_S3`), `AWS_REGION`, `AWS_ACCESS_KEY_ID`,
//! `AWS_SECRET_ACCESS_KEY`, `AWS_SESSION_TOKEN`; without keys the files of `AWS_PROFILE`; without
//! those a role: web identity, container or instance (not with `AWS_EC2_METADATA_DISABLED=true`).
//! The other variables of `object_store` hold as
//! well, like `AWS_VIRTUAL_HOSTED_STYLE_REQUEST` and `AWS_UNSIGNED_PAYLOAD`. Google Cloud Storage:
//! `GOOGLE_APPLICATION_CREDENTIALS`, or the machine's. Azure: `AZURE_STORAGE_ACCOUNT_NAME` with
//! `AZURE_STORAGE_ACCOUNT_KEY` or what else identifies there.

use std::io::{self, ErrorKind};
use std::str::FromStr;
use std::sync::Arc;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::path::Path as Location;

use super::failure::to_io;
use super::options::RemoteOptions;
use super::transport::{ScaledTimeouts, client_options};
use super::{Client, aws_profile};

const SCHEMES: [&str; 3] = ["s3", "gs", "az"];

/// A URL that can be talked to.
pub(super) struct Address {
    pub(super) prefix: Location,
    pub(super) client: Arc<dyn Client>,
    /// What to tell a user whom the store refuses.
    pub(super) hint: Option<&'static str>,
}

/// For S3, where nothing says who the user is but perhaps the machine.
const NO_CREDENTIALS: &str = "no credentials but those of the machine: AWS_ACCESS_KEY_ID, files of \
                              AWS_PROFILE and roles of containers are not there";

/// Whether a text is a URL of an object store, not a path.
pub fn is_remote(text: &str) -> bool {
    text.split_once("://").is_some_and(|(scheme, _)| SCHEMES.contains(&scheme))
}

pub(super) fn connect(url: &str, options: &RemoteOptions) -> io::Result<Address> {
    let invalid = |reason: String| io::Error::new(ErrorKind::InvalidInput, reason);
    let (scheme, rest) = url.split_once("://").unwrap_or_default();
    let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    if !SCHEMES.contains(&scheme) || bucket.is_empty() {
        let expected = "expected s3://bucket/prefix, gs://bucket/prefix or az://container/prefix";
        return Err(invalid(expected.to_owned()));
    }
    let prefix = Location::parse(prefix).map_err(|error| invalid(error.to_string()))?;
    let client = match scheme {
        "s3" => return s3(bucket, prefix, options),
        "gs" => google(bucket, options),
        _ => azure(bucket, options),
    };
    Ok(Address { prefix, client: client.map_err(to_io)?, hint: None })
}

type Connected = object_store::Result<Arc<dyn Client>>;

fn s3(bucket: &str, prefix: Location, options: &RemoteOptions) -> io::Result<Address> {
    let mut builder = AmazonS3Builder::from_env();
    for (key, value) in parsed(options) {
        builder = builder.with_config(key, value);
    }
    for (key, value) in aws_profile::settings() {
        if builder.get_config_value(&key).is_none() {
            builder = builder.with_config(key, value);
        }
    }
    let is_set = |key, value| builder.get_config_value(&key).is_some_and(|found| found == value);
    let is_identified = builder.get_config_value(&AmazonS3ConfigKey::AccessKeyId).is_some()
        || is_set(AmazonS3ConfigKey::SkipSignature, "true")
        || aws_profile::has_other_credentials();
    let has_metadata = std::env::var("AWS_EC2_METADATA_DISABLED").as_deref() != Ok("true");
    if !is_identified && !has_metadata {
        return Err(io::Error::new(ErrorKind::PermissionDenied, NO_CREDENTIALS));
    }
    let is_http = |key| builder.get_config_value(&key).is_some_and(|url| url.starts_with("http:"));
    let allow_http = is_http(AmazonS3ConfigKey::Endpoint) || is_http(AmazonS3ConfigKey::S3Endpoint);
    let client = builder
        .with_bucket_name(bucket)
        .with_client_options(client_options(allow_http))
        .with_http_connector(ScaledTimeouts(options.clone()))
        .with_retry(options.retries())
        .build()
        .map_err(to_io)?;
    let hint = (!is_identified).then_some(NO_CREDENTIALS);
    Ok(Address { prefix, client: Arc::new(client), hint })
}

fn google(bucket: &str, options: &RemoteOptions) -> Connected {
    let mut builder = GoogleCloudStorageBuilder::from_env();
    for (key, value) in parsed(options) {
        builder = builder.with_config(key, value);
    }
    let client = builder
        .with_bucket_name(bucket)
        .with_client_options(client_options(false))
        .with_http_connector(ScaledTimeouts(options.clone()))
        .with_retry(options.retries())
        .build()?;
    Ok(Arc::new(client))
}

fn azure(container: &str, options: &RemoteOptions) -> Connected {
    let mut builder = MicrosoftAzureBuilder::from_env();
    for (key, value) in parsed(options) {
        builder = builder.with_config(key, value);
    }
    let client = builder
        .with_container_name(container)
        .with_client_options(client_options(false))
        .with_http_connector(ScaledTimeouts(options.clone()))
        .with_retry(options.retries())
        .build()?;
    Ok(Arc::new(client))
}

/// The given settings that are of this kind of store.
fn parsed<K: FromStr>(options: &RemoteOptions) -> impl Iterator<Item = (K, &String)> {
    let settings = options.settings.iter();
    settings.filter_map(|(name, value)| Some((name.to_ascii_lowercase().parse().ok()?, value)))
}

#[cfg(test)]
mod tests {
    use super::super::Remote;
    use super::*;

    #[test]
    fn paths_are_not_urls() {
        for url in ["s3://bucket/a", "gs://bucket", "az://container/a"] {
            assert!(is_remote(url), "{url}");
        }
        for path in ["s3", "s3/bucket", "/s3://", "file:///a", "http://x", "as3://bucket"] {
            assert!(!is_remote(path), "{path}");
        }
    }

    #[test]
    fn an_invalid_url_is_named() {
        for url in ["s3://", "s3:///key", "ftp://bucket", "s3://bucket/../up"] {
            let error = Remote::open(url).unwrap_err();
            assert_eq!(error.source.kind(), ErrorKind::InvalidInput, "{url}");
            assert!(error.to_string().starts_with(url.trim_end_matches('/')), "{error}");
        }
    }
}
