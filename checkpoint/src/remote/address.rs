//! Creation of a client from a URL and the environment.
//!
//! S3: `AWS_ENDPOINT_URL` (or `AWS_ENDPOINT_URL_S3`), `AWS_REGION`, `AWS_ACCESS_KEY_ID`,
//! `AWS_SECRET_ACCESS_KEY`, `AWS_SESSION_TOKEN`; without keys the files of `AWS_PROFILE`; without
//! those a role: web identity, container or instance (not with `AWS_EC2_METADATA_DISABLED=true`).
//! The other variables of `object_store` are read as well, like `AWS_VIRTUAL_HOSTED_STYLE_REQUEST`
//! and `AWS_UNSIGNED_PAYLOAD`. Google Cloud Storage: `GOOGLE_APPLICATION_CREDENTIALS`, or those of
//! the machine. Azure: `AZURE_STORAGE_ACCOUNT_NAME` with `AZURE_STORAGE_ACCOUNT_KEY` or another
//! credential.

use std::io::{self, ErrorKind};
use std::sync::{Arc, Mutex};

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::path::Path as Location;

use super::failure::to_io;
use super::options::RemoteOptions;
use super::provider::Provider;
use super::settings::{self, Key, Kind, Setting, Variables};
use super::silence::Silence;
use super::transport::{Connector, client_options};
use super::{Client, aws_profile};
use record::text::{OBJECT_STORES, is_redacted, redacted};

/// URL of a store and the client for it.
pub(super) struct Address {
    pub(super) prefix: Location,
    pub(super) client: Arc<dyn Client>,
    /// Hint for a user whom the store refuses.
    pub(super) hint: Option<&'static str>,
    pub(super) silence: Arc<Mutex<Silence>>,
}

/// Hint for S3, where only the machine may have credentials.
const NO_CREDENTIALS: &str = "no credentials but those of the machine: AWS_ACCESS_KEY_ID, files of \
                              AWS_PROFILE and roles of containers are not there";

pub(super) fn connect(url: &str, options: &RemoteOptions) -> io::Result<Address> {
    let unusable = |reason: String| io::Error::new(ErrorKind::InvalidInput, reason);
    let (scheme, rest) = url.split_once("://").unwrap_or_default();
    let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    if !OBJECT_STORES.contains(&scheme) || bucket.is_empty() {
        let expected = "expected s3://bucket/prefix, gs://bucket/prefix or az://container/prefix";
        return Err(unusable(expected.to_owned()));
    }
    require_no_secret(url)?;
    if !settings::is_name(&bucket.replace([':', '$'], "")) {
        return Err(unusable(format!("expected the name of a bucket, found {bucket:?}")));
    }
    let prefix = Location::parse(prefix).map_err(|error| unusable(error.to_string()))?;
    let variables = Variables::new(&options.settings);
    let mut hint = None;
    let silence = Arc::default();
    let client = match scheme {
        "s3" => {
            let mut settings = variables.settings(AmazonS3Builder::VARIABLES)?;
            aws_profile::complete(&mut settings, variables)?;
            hint = no_credentials(&settings, variables)?;
            client::<AmazonS3Builder>(bucket, &settings, options, &silence)
        }
        "gs" => {
            let settings = variables.settings(GoogleCloudStorageBuilder::VARIABLES)?;
            client::<GoogleCloudStorageBuilder>(bucket, &settings, options, &silence)
        }
        _ => {
            let settings = variables.settings(MicrosoftAzureBuilder::VARIABLES)?;
            client::<MicrosoftAzureBuilder>(bucket, &settings, options, &silence)
        }
    };
    Ok(Address { prefix, client: client?, hint, silence })
}

/// Requires that nothing in a URL has to be hidden: it is stored and shown in many places.
///
/// # Errors
/// When it has a user, a password or a query, of which the error shows nothing.
pub fn require_no_secret(url: &str) -> io::Result<()> {
    let shown = redacted(url);
    if shown == url && !is_redacted(url) {
        return Ok(());
    }
    let what = format!(
        "expected a bucket and a prefix, found credentials or a query in {shown}; credentials come \
         from environment variables, like AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
    );
    Err(io::Error::new(ErrorKind::InvalidInput, what))
}

/// Returns a hint about credentials where only the machine may have some.
///
/// # Errors
/// When the machine must not be asked.
fn no_credentials(
    settings: &Vec<Setting<AmazonS3ConfigKey>>,
    variables: Variables<'_>,
) -> io::Result<Option<&'static str>> {
    use AmazonS3ConfigKey::{
        AccessKeyId, ContainerCredentialsFullUri, ContainerCredentialsRelativeUri,
        WebIdentityTokenFile,
    };
    let identities = [
        AccessKeyId,
        ContainerCredentialsFullUri,
        ContainerCredentialsRelativeUri,
        WebIdentityTokenFile,
    ];
    if aws_profile::is_anonymous(settings) || aws_profile::has(settings, &identities) {
        return Ok(None);
    }
    match variables.get("AWS_EC2_METADATA_DISABLED")? {
        Some(value) if value.eq_ignore_ascii_case("true") => {
            Err(io::Error::new(ErrorKind::PermissionDenied, NO_CREDENTIALS))
        }
        _ => Ok(Some(NO_CREDENTIALS)),
    }
}

/// The client of a bucket. An error names the setting that causes it by itself.
fn client<P: Provider>(
    bucket: &str,
    settings: &[Setting<P::Key>],
    options: &RemoteOptions,
    silence: &Arc<Mutex<Silence>>,
) -> io::Result<Arc<dyn Client>> {
    let has_proxy = settings.iter().any(|setting| setting.key.kind() == Some(Kind::Proxy));
    let connect = |settings: &[Setting<P::Key>]| {
        let is_http = settings.iter().any(|setting| setting.value.starts_with("http:"));
        let connector = Connector {
            options: options.clone(),
            token: P::Key::token_file(settings),
            has_proxy,
            silence: Arc::clone(silence),
        };
        let mut builder = P::new(bucket, client_options(is_http), connector);
        for Setting { key, value, .. } in settings {
            // The connector reads that file: object_store panics where it is no valid header.
            let is_header = key.kind() == Some(Kind::HeaderFile);
            builder = builder.set(*key, if is_header { "/dev/null" } else { value });
        }
        builder.connect().map_err(to_io)
    };
    connect(settings).map_err(|error| {
        let text = error.to_string();
        let is_cause = |settings| connect(settings).is_err_and(|other| other.to_string() == text);
        let mut each = settings.iter().filter(|_| !is_cause(&[]));
        let culprit = each.find(|setting| is_cause(std::slice::from_ref(setting)));
        match culprit {
            Some(setting) => setting.blame(&error),
            None => error,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::super::Remote;
    use super::*;
    use record::text::is_remote;

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
    fn a_url_with_a_secret_is_refused_without_it() {
        for url in ["s3://key:PASS@bucket/a", "s3://bucket/a?sig=PASS", "az://c/a#PASS"] {
            let error = Remote::open(url).unwrap_err();
            assert_eq!(error.source.kind(), ErrorKind::InvalidInput, "{url}");
            let text = format!("{error:?} {error}");
            assert!(!text.contains("PASS") && text.contains("AWS_ACCESS_KEY_ID"), "{text}");
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
