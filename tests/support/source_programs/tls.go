package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"time"
)

// serveTLS serves what another server has behind a certificate of an authority that nobody knows;
// the authority's own certificate is root/ca.crt.
func serveTLS(root, behind string) (string, error) {
	authority := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "tests"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	authorityKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return "", err
	}
	der, err := x509.CreateCertificate(rand.Reader, authority, authority, &authorityKey.PublicKey, authorityKey)
	if err != nil {
		return "", err
	}
	encoded := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	if err := os.WriteFile(filepath.Join(root, "ca.crt"), encoded, 0o644); err != nil {
		return "", err
	}
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "localhost"},
		NotBefore: authority.NotBefore, NotAfter: authority.NotAfter,
		DNSNames: []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return "", err
	}
	signed, err := x509.CreateCertificate(rand.Reader, leaf, authority, &key.PublicKey, authorityKey)
	if err != nil {
		return "", err
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return "", err
	}
	// for servers of the tests' own
	both := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})
	both = append(both, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: signed})...)
	if err := os.WriteFile(filepath.Join(root, "tls.pem"), both, 0o600); err != nil {
		return "", err
	}
	certificate := tls.Certificate{Certificate: [][]byte{signed}, PrivateKey: key}
	target, err := url.Parse(behind)
	if err != nil {
		return "", err
	}
	// the host stays as it was asked for: signatures cover it
	proxy := &httputil.ReverseProxy{Director: func(request *http.Request) {
		request.URL.Scheme, request.URL.Host = target.Scheme, target.Host
	}}
	listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{certificate}})
	if err != nil {
		return "", err
	}
	go http.Serve(listener, proxy)
	return "https://" + listener.Addr().String(), nil
}
