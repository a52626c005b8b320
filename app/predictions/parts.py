"""How good the predictions are on parts of the images, the worst part first."""

from typing import Any

import streamlit as st

from app.markup import plain
from app.predictions.source import Source
from labkit.analysis.predictions import Predictions
from labkit.analysis.slices import names_of_slices, slices_by
from labkit.data.of_run import data_set_of
from labkit.errors import InputError

NO_COLUMNS = (
    "A data set of pictures that a CSV file lists has more to choose: each further column of the file, and "
    "width and height of the files."
)


@st.fragment
def panel(source: Source, predictions: Predictions) -> None:
    """Draw the choice of what tells the parts apart, and the parts."""
    try:
        manifest = data_set_of(source.run)
        names = names_of_slices(predictions, manifest, source.split)
        by = st.selectbox("Parts by", names, key="parts-by", bind="query-params", width=240)
        found = slices_by(predictions, manifest, source.split, str(by))
    except InputError as error:
        st.info(plain(str(error)), icon=":material/info:")
        return
    are_numbers = predictions.are_numbers
    scale = 1 if are_numbers else 100
    form: Any = "%.4g" if are_numbers else "%.1f %%"
    what = "Mean absolute error" if are_numbers else "Accuracy"
    st.dataframe(
        [
            {
                "part": one.name,
                "images": one.count,
                "value": scale * one.value,
                "low": scale * one.low,
                "high": scale * one.high,
            }
            for one in found
        ],
        hide_index=True,
        key="parts",
        column_config={
            "part": st.column_config.TextColumn(str(by).capitalize()),
            "images": st.column_config.NumberColumn("Images"),
            "value": st.column_config.NumberColumn(what, format=form),
            "low": st.column_config.NumberColumn(
                "From", format=form, help="Lower end of the interval of 95 %."
            ),
            "high": st.column_config.NumberColumn(
                "To", format=form, help="Upper end of the interval of 95 %."
            ),
        },
    )
    st.caption("The worst part first, with its interval of 95 %: parts of few images differ by chance.")
    if len(names) <= 2:
        st.caption(NO_COLUMNS)
