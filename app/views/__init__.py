"""The pages of the dashboard, one module each. A folder named ``pages`` would be Streamlit's own navigation."""
