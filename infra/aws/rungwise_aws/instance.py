"""EC2's instance metadata service, version 2, which describes this machine.

Every request needs a session token, obtained by a PUT. Botocore reads credentials from the same
service and honours the same variable for another address.
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/configuring-instance-metadata-service.html
"""

import os
import urllib.error
import urllib.request

ENDPOINT_VARIABLE = "AWS_EC2_METADATA_SERVICE_ENDPOINT"
_ENDPOINT = "http://169.254.169.254"
_SESSION_SECONDS = 6 * 3600
_TIMEOUT_SECONDS = 5.0
# Never through a proxy: the service answers only the machine itself.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class InstanceMetadata:
    """Reads entries below /latest/meta-data/, with one session token while it is valid."""

    def __init__(self) -> None:
        self._endpoint = os.environ.get(ENDPOINT_VARIABLE, _ENDPOINT).rstrip("/")
        self._session: str | None = None

    def get(self, path: str) -> str | None:
        """The entry at `path`, or None. Raises OSError if the service does not answer."""
        try:
            return self._request(path)
        except urllib.error.HTTPError as error:
            if error.code == 401:  # the session has expired
                self._session = None
                return self._request(path)
            if error.code == 404:
                return None
            raise

    def _request(self, path: str) -> str:
        if self._session is None:
            lifetime = {"X-aws-ec2-metadata-token-ttl-seconds": str(_SESSION_SECONDS)}
            self._session = self._send("PUT", "api/token", lifetime)
        return self._send("GET", f"meta-data/{path}", {"X-aws-ec2-metadata-token": self._session})

    def _send(self, method: str, route: str, headers: dict[str, str]) -> str:
        url = f"{self._endpoint}/latest/{route}"
        request = urllib.request.Request(url, method=method, headers=headers)
        with _OPENER.open(request, timeout=_TIMEOUT_SECONDS) as response:
            return response.read().decode()
