package main

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

const certificateLifetime = 365 * 24 * time.Hour

// makePKI writes the pairs of the API server and its clients and the service-account key into a
// folder. The front proxy, which may act for any user, has an authority of its own.
// usage: pki FOLDER HOST...
func makePKI(arguments []string) error {
	if len(arguments) < 2 {
		return errors.New("usage: pki FOLDER HOST...")
	}
	folder, hosts := arguments[0], arguments[1:]
	cluster, err := newAuthority(folder, "ca")
	if err != nil {
		return err
	}
	frontProxy, err := newAuthority(folder, "front-proxy-ca")
	if err != nil {
		return err
	}
	kubeletClient := clientCertificate("kube-apiserver-kubelet-client")
	kubeletClient.Subject.Organization = []string{"system:masters"}
	for _, each := range []struct {
		name     string
		template *x509.Certificate
		issuer   *authority
	}{
		{"apiserver", serverCertificate("kube-apiserver", hosts), cluster},
		{"metrics-server", serverCertificate("metrics-server", []string{"metrics-server.kube-system.svc"}), cluster},
		{"kubelet-client", kubeletClient, cluster},
		{"front-proxy-client", clientCertificate("front-proxy-client"), frontProxy},
	} {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			return err
		}
		if err := writePair(folder, each.name, each.template, each.issuer.certificate, key, each.issuer.key); err != nil {
			return err
		}
	}
	// Service-account tokens are signed with RSA: what most clients' libraries expect to verify.
	accounts, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return err
	}
	return writeKey(filepath.Join(folder, "service-accounts.key"), accounts)
}

type authority struct {
	certificate *x509.Certificate
	key         crypto.Signer
}

func newAuthority(folder, name string) (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := certificate("enginewright-local-" + name)
	template.IsCA, template.BasicConstraintsValid = true, true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature
	return &authority{template, key}, writePair(folder, name, template, template, key, key)
}

func serverCertificate(name string, hosts []string) *x509.Certificate {
	template := certificate(name)
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	for _, host := range hosts {
		if address := net.ParseIP(host); address != nil {
			template.IPAddresses = append(template.IPAddresses, address)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	return template
}

func clientCertificate(name string) *x509.Certificate {
	template := certificate(name)
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	return template
}

func certificate(name string) *x509.Certificate {
	serial, err := rand.Int(rand.Reader, big.NewInt(0).Lsh(big.NewInt(1), 120))
	if err != nil {
		panic(err) // the kernel's random source is gone
	}
	return &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(certificateLifetime),
		KeyUsage:     x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment,
	}
}

func writePair(folder, name string, template, parent *x509.Certificate, key, parentKey crypto.Signer) error {
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), parentKey)
	if err != nil {
		return err
	}
	block := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	if err := os.WriteFile(filepath.Join(folder, name+".crt"), block, 0o644); err != nil {
		return err
	}
	return writeKey(filepath.Join(folder, name+".key"), key)
}

func writeKey(path string, key crypto.Signer) error {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	return os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600)
}
