"""The pages of the dashboard, a module each. (A folder ``pages`` would be Streamlit's own navigation.)"""
