/* Streamlit keeps the theme in the browser's storage, for each address that a page was loaded from, and reads
   it when it starts. The script writes it for every page of the dashboard and loads the page again. */
export default function ({ parentElement }) {
  const VERSION = 2; // of what Streamlit keeps
  const links = [...document.querySelectorAll('[data-testid="stSidebarNavLink"]')];
  const addresses = [location.pathname, ...links.map((link) => new URL(link.href).pathname)];
  const key = (address) => `stActiveTheme-${address}-v${VERSION}`;
  const kept = () => {
    for (const address of addresses)
      try {
        const theme = JSON.parse(localStorage.getItem(key(address)));
        if (theme) return theme;
      } catch { /* none is kept */ }
    return 'System';
  };
  const radios = [...parentElement.querySelectorAll('input')];
  const mark = () => radios.forEach((radio) => { radio.checked = radio.value === kept(); });
  mark();
  const choose = (event) => {
    const theme = JSON.stringify(event.target.value);
    try {
      addresses.forEach((address) => localStorage.setItem(key(address), theme));
    } catch { // a browser that keeps nothing
      mark();
      return;
    }
    const url = new URL(location);
    const options = url.searchParams.getAll('embed_options');
    url.searchParams.delete('embed_options'); // its theme would go before the one that was chosen
    options.filter((one) => !/^(light|dark)_theme$/.test(one)).forEach((one) =>
      url.searchParams.append('embed_options', one));
    history.replaceState(history.state, '', url);
    location.reload();
  };
  radios.forEach((radio) => radio.addEventListener('change', choose));
  return () => radios.forEach((radio) => radio.removeEventListener('change', choose));
}
