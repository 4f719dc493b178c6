"""Images, bags, masks, tables and splits that commands train on."""
