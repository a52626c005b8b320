"""How good the predictions are on parts of the images, the worst part first."""

import streamlit as st

from app.markup import number_text, plain, table_html
from app.predictions.source import Source
from labkit.analysis.predictions import Predictions
from labkit.analysis.slices import names_of_slices, slices_by
from labkit.data.of_run import data_set_of
from labkit.errors import InputError

NO_COLUMNS = (
    "There is more to choose where columns came with the images: from a CSV file of pictures, with width and "
    "height of the files, or beside arrays in Python."
)


@st.fragment
def panel(source: Source, predictions: Predictions) -> None:
    """Draw the choice of what tells the parts apart, and the parts."""
    try:
        manifest = data_set_of(source.run)
        names = names_of_slices(manifest, source.split)
        by = st.selectbox("Parts by", names, key="parts-by", bind="query-params", width=240)
        found = slices_by(predictions, manifest, source.split, str(by))
    except InputError as error:
        st.info(plain(str(error)), icon=":material/info:")
        return
    form = ".4g" if predictions.are_numbers else ".1%"
    what = "Mean absolute error" if predictions.are_numbers else "Accuracy"
    rows = [
        (one.name, f"{one.count:,}", *(number_text(value, form) for value in (one.value, one.low, one.high)))
        for one in found
    ]
    st.html(table_html((str(by).capitalize(), "Images", what, "From", "To"), rows))
    st.caption("The worst part first, with its interval of 95 %: parts of few images differ by chance.")
    if len(names) <= 2:
        st.caption(NO_COLUMNS)
